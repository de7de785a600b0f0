// The loads of benches/src/load.rs as a Go program would have them: goroutines, channels, sync.Mutex, time.AfterFunc.
//
//	rivals WORKERS REPEATS LOAD [NUMBER]...
//
// WORKERS is GOMAXPROCS. With REPEATS 0 the load is repeated as measure.rs does it: once to warm up, then for 150 ms, 3 to 200
// times. Prints a line "op<TAB>NANOSECONDS" for each repeat, and "figure<TAB>cpu ns<TAB>NANOSECONDS", as the children of `claims`
// do. Ends with 1 if the work was not done. Built by benches/compare.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A load that is run once: how long it took, and a value that only the whole work has.
type run struct {
	elapsed time.Duration
	value   uint64
}

func timed(f func() uint64) run {
	start := time.Now()
	value := f()
	return run{time.Since(start), value}
}

//go:noinline
func behindOne() { runtime.Gosched() }

//go:noinline
func behindTwo() { behindOne() }

//go:noinline
func behindThree() { behindTwo() }

func yields(tasks, each, calls uint64) run {
	yield := runtime.Gosched
	switch calls {
	case 1:
		yield = behindOne
	case 3:
		yield = behindThree
	}
	return timed(func() uint64 {
		var over sync.WaitGroup
		var sum atomic.Uint64
		for i := uint64(0); i < tasks; i++ {
			over.Add(1)
			go func() {
				for j := uint64(0); j < each; j++ {
					yield()
				}
				sum.Add(each)
				over.Done()
			}()
		}
		over.Wait()
		return sum.Load()
	})
}

func spawnIn(n uint64) run {
	marks := make([]byte, n)
	made := timed(func() uint64 {
		var over sync.WaitGroup
		over.Add(int(n))
		for i := range marks {
			i := i
			go func() {
				marks[i] = 1
				over.Done()
			}()
		}
		over.Wait()
		return 0
	})
	for _, mark := range marks {
		made.value += uint64(mark)
	}
	return made
}

func node(result chan<- uint64, first, leaves uint64) {
	if leaves == 1 {
		result <- first
		return
	}
	sums := make(chan uint64, 10)
	for i := uint64(0); i < 10; i++ {
		go node(sums, first+i*leaves/10, leaves/10)
	}
	var sum uint64
	for i := 0; i < 10; i++ {
		sum += <-sums
	}
	result <- sum
}

func skynet(leaves uint64) run {
	return timed(func() uint64 {
		result := make(chan uint64, 1)
		go node(result, 0, leaves)
		return <-result
	})
}

func lockAlone(n uint64) run {
	var lock sync.Mutex
	var number uint64
	return timed(func() uint64 {
		for i := uint64(0); i < n; i++ {
			lock.Lock()
			number++
			lock.Unlock()
		}
		return number
	})
}

// With `yielding` the lock is held across a yield.
func lockContended(tasks, each uint64, yielding bool) run {
	var lock sync.Mutex
	var number uint64
	return timed(func() uint64 {
		var over sync.WaitGroup
		for i := uint64(0); i < tasks; i++ {
			over.Add(1)
			go func() {
				for j := uint64(0); j < each; j++ {
					lock.Lock()
					if yielding {
						runtime.Gosched()
					}
					number++
					lock.Unlock()
				}
				over.Done()
			}()
		}
		over.Wait()
		return number
	})
}

func serve(n uint64, tokens <-chan uint64, back chan<- uint64) {
	for i := uint64(0); i < n; i++ {
		back <- <-tokens
	}
}

func play(n uint64, there chan<- uint64, back <-chan uint64) uint64 {
	var sum uint64
	for i := uint64(0); i < n; i++ {
		there <- 1
		sum += <-back
	}
	return sum
}

func pingPong(n uint64) run {
	there, back := make(chan uint64, 1), make(chan uint64, 1)
	go serve(n, there, back)
	return timed(func() uint64 { return play(n, there, back) })
}

// Each side has a thread of its own, as in the other runtimes' rows a worker of its own. With `awake` another goroutine yields beside each, so that
// no processor of Go's runtime is idle.
func pingPongAcross(n uint64, awake bool) run {
	there, back := make(chan uint64, 1), make(chan uint64, 1)
	var over atomic.Bool
	if awake {
		for i := 0; i < 2; i++ {
			go func() {
				for !over.Load() {
					runtime.Gosched()
				}
			}()
		}
	}
	go func() {
		runtime.LockOSThread()
		serve(n+1, there, back)
	}()
	result := make(chan run)
	go func() {
		runtime.LockOSThread()
		play(1, there, back)
		result <- timed(func() uint64 { return play(n, there, back) })
	}()
	run := <-result
	over.Store(true)
	return run
}

// A receive that gives up after an hour.
func receive(from <-chan uint64) uint64 {
	hour := time.NewTimer(time.Hour)
	select {
	case token := <-from:
		hour.Stop()
		return token
	case <-hour.C:
		fail("an hour has passed")
		return 0
	}
}

func timeouts(n uint64) run {
	there, back := make(chan uint64, 1), make(chan uint64, 1)
	go func() {
		for i := uint64(0); i < n; i++ {
			back <- receive(there)
		}
	}()
	return timed(func() uint64 {
		var sum uint64
		for i := uint64(0); i < n; i++ {
			there <- 1
			sum += receive(back)
		}
		return sum
	})
}

func mpsc(senders, each, capacity uint64) run {
	return timed(func() uint64 {
		items := make(chan uint64, capacity)
		var over sync.WaitGroup
		for i := uint64(0); i < senders; i++ {
			over.Add(1)
			go func() {
				for j := uint64(0); j < each; j++ {
					items <- 1
				}
				over.Done()
			}()
		}
		go func() {
			over.Wait()
			close(items)
		}()
		var sum uint64
		for item := range items {
			sum += item
		}
		return sum
	})
}

func timers(tasks, each uint64, standing bool) run {
	return timed(func() uint64 {
		var over sync.WaitGroup
		var sum atomic.Uint64
		for i := uint64(0); i < tasks; i++ {
			over.Add(1)
			go func() {
				defer over.Done()
				var stopped uint64
				stop := func(timer *time.Timer) {
					if timer.Stop() {
						stopped++
					}
				}
				if standing {
					all := make([]*time.Timer, each)
					for j := range all {
						all[j] = time.AfterFunc(time.Hour+time.Duration(j)*time.Millisecond, func() {})
					}
					for _, timer := range all {
						stop(timer)
					}
				} else {
					for j := uint64(0); j < each; j++ {
						stop(time.AfterFunc(time.Hour, func() {}))
					}
				}
				sum.Add(stopped)
			}()
		}
		over.Wait()
		return sum.Load()
	})
}

// Goroutines cannot be cancelled. Each looks at a context of its own, which is cancelled, and says when it is over.
func cancelSome(among, victims uint64) run {
	gate := make(chan struct{})
	type member struct {
		cancel context.CancelFunc
		over   chan bool
	}
	all := make([]member, among)
	var parked sync.WaitGroup
	parked.Add(int(among))
	for i := range all {
		asked, cancel := context.WithCancel(context.Background())
		over := make(chan bool, 1)
		all[i] = member{cancel, over}
		go func() {
			parked.Done()
			select {
			case <-asked.Done():
				over <- true
			case <-gate:
				over <- false
			}
		}()
	}
	parked.Wait()
	apart := among / victims
	cancelled := timed(func() uint64 {
		var count uint64
		for i := uint64(0); i < victims; i++ {
			all[i*apart].cancel()
			if <-all[i*apart].over {
				count++
			}
		}
		return count
	})
	close(gate)
	for i, it := range all {
		if uint64(i)%apart != 0 || uint64(i)/apart >= victims {
			<-it.over
		}
		it.cancel()
	}
	return cancelled
}

// Computing on all processors for some milliseconds, so that the system spreads the threads over the cores.
func settle() {
	var over sync.WaitGroup
	for i := 0; i < runtime.GOMAXPROCS(0); i++ {
		over.Add(1)
		go func() {
			for until := time.Now().Add(10 * time.Millisecond); time.Now().Before(until); {
			}
			over.Done()
		}()
	}
	over.Wait()
}

func cpu() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		fail("getrusage: %v", err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func fail(format string, what ...any) {
	fmt.Fprintf(os.Stderr, "rivals: "+format+"\n", what...)
	os.Exit(1)
}

func main() {
	if len(os.Args) < 4 {
		fail("WORKERS REPEATS LOAD [NUMBER]...")
	}
	var numbers []uint64
	for _, word := range append(os.Args[1:3:3], os.Args[4:]...) {
		number, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			fail("not a number: %s", word)
		}
		numbers = append(numbers, number)
	}
	workers, repeats, given := int(numbers[0]), numbers[1], numbers[2:]
	at := func(i int) uint64 {
		if i >= len(given) {
			fail("%s needs more numbers", os.Args[3])
		}
		return given[i]
	}
	var once func() run
	var ops, expected uint64
	switch os.Args[3] {
	case "switch":
		once, ops = func() run { return yields(at(0), at(1), at(2)) }, at(0)*at(1)
	case "spawn-in":
		once, ops = func() run { return spawnIn(at(0)) }, at(0)
	case "skynet":
		leaves := at(0)
		once, ops, expected = func() run { return skynet(leaves) }, (10*leaves-1)/9, leaves*(leaves-1)/2
	case "lock":
		once, ops = func() run { return lockAlone(at(0)) }, at(0)
	case "lock-contended":
		once, ops = func() run { return lockContended(at(0), at(1), false) }, at(0)*at(1)
	case "lock-yield":
		once, ops = func() run { return lockContended(at(0), at(1), true) }, at(0)*at(1)
	case "ping-pong":
		once, ops = func() run { return pingPong(at(0)) }, at(0)
	case "ping-pong-awake":
		once, ops = func() run { return pingPongAcross(at(0), true) }, at(0)
	case "ping-pong-asleep":
		once, ops = func() run { return pingPongAcross(at(0), false) }, at(0)
	case "mpsc":
		once, ops = func() run { return mpsc(at(0), at(1), at(2)) }, at(0)*at(1)
	case "timer":
		once, ops = func() run { return timers(at(0), at(1), false) }, at(0)*at(1)
	case "timer-standing":
		once, ops = func() run { return timers(at(0), at(1), true) }, at(0)*at(1)
	case "timeouts":
		once, ops = func() run { return timeouts(at(0)) }, at(0)
	case "cancel-some":
		once, ops = func() run { return cancelSome(at(0), at(1)) }, at(1)
	default:
		fail("no such load: %s", os.Args[3])
	}
	if expected == 0 {
		expected = ops
	}
	checked := func() run {
		done := once()
		if done.value != expected {
			fail("%s did not do its work: %d instead of %d", os.Args[3], done.value, expected)
		}
		return done
	}

	runtime.GOMAXPROCS(workers)
	settle()
	checked()
	least, most, long := uint64(3), uint64(200), 150*time.Millisecond
	if repeats > 0 {
		least, most, long = repeats, repeats, 0
	}
	begun, before := time.Now(), cpu()
	var count uint64
	for ; count < least || (count < most && time.Since(begun) < long); count++ {
		fmt.Printf("op\t%g\n", float64(checked().elapsed.Nanoseconds())/float64(ops))
	}
	fmt.Printf("figure\tcpu ns\t%g\n", float64((cpu()-before).Nanoseconds())/float64(count*ops))
}

"""Celery on Redis, and Dask distributed, in the rows `many` and `alone` of the program `cluster`, which starts this: cluster_rivals.py ROW CANDIDATE N.

Both have two worker processes on this machine that run one task at a time, as they do by themselves; a worker of Celery takes 16 tasks in advance. The clock runs from before the first
task is scheduled, until all results are here. A tenth of the tasks has run before that. Redis keeps nothing on disk.
"""

import math
import os
import subprocess
import sys
import time


def celery_app():
    from celery import Celery

    url = os.environ["FOREBEAR_BENCH_REDIS"]
    app = Celery("cluster_rivals", broker=url, backend=url)
    app.conf.worker_prefetch_multiplier = 16
    return app


# Celery's worker imports this file.
if "FOREBEAR_BENCH_REDIS" in os.environ and "Dask" not in sys.argv:
    app = celery_app()

    @app.task(name="noop")
    def celery_noop(n):
        return n


def noop(n):
    return n


class Celery:
    def __init__(self):
        command = [sys.executable, "-m", "celery", "-A", "cluster_rivals", "worker", "--concurrency", "2", "--pool", "prefork"]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR", "--queues", f"bench{os.getpid()}"]
        environment = dict(os.environ, PYTHONPATH=os.path.dirname(os.path.abspath(__file__)), C_FORCE_ROOT="1")
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.worker = subprocess.Popen(command, env=environment, **quiet)
        app.conf.task_default_queue = f"bench{os.getpid()}"
        celery_noop.delay(0).get(timeout=60)

    def many(self, n):
        # A group of all of them takes twice as long.
        results = [celery_noop.delay(i) for i in range(n)]
        return [result.get(timeout=300) for result in results]

    def alone(self, i):
        return celery_noop.delay(i).get(timeout=60)

    def end(self):
        self.worker.terminate()
        self.worker.wait(30)


class Dask:
    def __init__(self):
        # Workers that end write about it.
        os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"
        from distributed import Client, LocalCluster

        self.cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
        self.client = Client(self.cluster)

    def many(self, n):
        return self.client.gather(self.client.map(noop, range(n), pure=False))

    def alone(self, i):
        return self.client.submit(noop, i, pure=False).result()

    def end(self):
        self.client.close()
        self.cluster.close()


def percentile(values, percent):
    return sorted(values)[max(math.ceil(len(values) * percent / 100) - 1, 0)]


def main():
    row, name, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rival = {"Celery": Celery, "Dask": Dask}[name]()
    try:
        if row == "many":
            rival.many(n // 10)
            begun = time.perf_counter()
            results = rival.many(n)
            took = time.perf_counter() - begun
            assert list(results) == list(range(n))
            print("a second", n / took)
        else:
            times = []
            for i in range(n):
                begun = time.perf_counter()
                assert rival.alone(i) == i
                times.append((time.perf_counter() - begun) * 1e6)
            times = times[n // 10 :]
            print("p50 us", percentile(times, 50))
            print("p99 us", percentile(times, 99))
    finally:
        rival.end()


if __name__ == "__main__":
    main()

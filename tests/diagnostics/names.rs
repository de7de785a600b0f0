//! What requests are called.

#![allow(clippy::redundant_closure, reason = "the closures are what gives the names")]

use forebear::prelude::*;
use forebear::{Error, OrUnwind, scope, try_join, try_scope};

/// The name of the request that this is called in, and whether it has anything of forebear's own in it.
fn own_name() -> String {
    Request::current().expect("called in a request").name().to_owned()
}

fn is_the_users(name: &str, test: &str) -> bool {
    name == format!("names::{test}::{{{{closure}}}}")
        || name.starts_with(&format!("names::{test}::{{{{closure}}}}::"))
}

#[test]
fn an_unnamed_request_is_called_by_the_type_of_its_closure() {
    let test = "an_unnamed_request_is_called_by_the_type_of_its_closure";
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let large = [0_u8; 2048];
    runtime.enter(|| {
        let (mut members, mut names) = (RequestPool::new(), Vec::new());
        members.add(|| own_name()).try_add(|| Ok(own_name())).add_sized(1, move || (own_name(), large).0);
        members.wait_each(|_, name| names.push(name)).unwrap();
        let too_large = Request::builder().stack_size(1 << 40);
        let requests = [
            spawn(own_name).name().to_owned(),
            spawn(|| own_name()).take().unwrap(),
            try_spawn(|| Ok(own_name())).take().unwrap(),
            Request::new(|| own_name()).take().unwrap(),
            Request::builder().build(|| own_name()).take().unwrap(),
            Request::builder().try_build(|| Ok::<_, Error>(own_name())).take().unwrap(),
            spawn(move || (own_name(), large).0).take().unwrap(),
            try_spawn(move || Ok((own_name(), large).0)).take().unwrap(),
            scope(|s| s.spawn(|| own_name()).take().unwrap()),
            scope(|s| Request::builder().spawn_in(s, || own_name()).take().unwrap()),
            runtime.run(|| own_name()),
            runtime.try_run(|| Ok(own_name())).unwrap(),
            too_large.clone().build(|| ()).name().to_owned(),
            too_large.try_build(move || Ok(large)).name().to_owned(),
        ];
        assert_eq!(requests[0], "names::own_name");
        names.extend_from_slice(&requests[1..]);
        for (n, name) in names.iter().enumerate() {
            assert!(is_the_users(name, test), "number {n}: {name}");
        }
    });
}

#[test]
fn a_request_that_is_made_with_its_value_is_named_ready() {
    assert_eq!(Request::ready(7).name(), "ready");
}

/// Ends its request with the failure that `try_join` answers.
fn fails_in_a_join() -> Result<(), Error> {
    Ok(try_join(|| Err::<(), _>(Error::other("leaf")), || Ok(())).map(drop)?)
}

#[test]
fn a_branch_of_a_join_outside_requests_is_named_a_branch_of_a_join() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let failed = runtime.enter(|| {
        try_join(
            || Ok(has_begun.recv()?), // on a worker by then
            move || {
                begun.send(())?;
                fails_in_a_join()
            },
        )
    });
    let error = failed.unwrap_err();
    assert_eq!(format!("{error:#}"), "request `a branch of a join` failed: leaf");
}

#[test]
fn a_request_does_not_pass_on_its_own_failure() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let inner = || Request::builder().name("inner").try_spawn(fails_in_a_join);
    let outer = || Request::builder().name("outer");
    runtime.enter(|| {
        let text = |request: Request<()>| format!("{:#}", request.wait().unwrap_err());
        assert_eq!(text(outer().try_spawn(fails_in_a_join)), "request `outer` failed: leaf");
        assert_eq!(text(outer().spawn(|| fails_in_a_join().or_unwind())), "request `outer` failed: leaf");
        let scoped = || Ok(try_scope(|_| fails_in_a_join())?);
        assert_eq!(text(outer().try_spawn(scoped)), "request `outer` failed: leaf");
        // Another request does, also one of the same name.
        let wanted = "request `inner` failed: leaf (passed on by `outer`)";
        assert_eq!(text(outer().try_spawn(move || Ok(inner().take()?))), wanted);
        let namesake = move || Ok(outer().try_spawn(fails_in_a_join).take()?);
        let wanted = "request `outer` failed: leaf (passed on by `outer`)";
        assert_eq!(text(outer().try_spawn(namesake)), wanted);
    });
}

#[test]
fn the_message_of_an_unnamed_requests_failure_shows_where_it_is_the_users() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let failed = runtime.try_spawn(|| Err::<(), _>(Error::other("no")));
    let message = failed.wait().unwrap_err().to_string();
    assert!(!message.contains("forebear"), "{message}");
    assert!(message.contains("shows_where_it_is_the_users::{{closure}}"), "{message}");
}

#[test]
fn a_request_has_a_number_that_is_its_own() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let two = [runtime.spawn(|| ()), runtime.spawn(|| ())];
    let [one, other] = two.each_ref().map(|request| request.id().as_u64());
    assert!(one != other && one != 0 && other != 0);
    assert_eq!(two[0].id().as_u64(), one, "it stays");
    assert_eq!(two[0].id().to_string(), format!("#{one}"));
}

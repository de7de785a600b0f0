//! A value is lent for as long as the handle lives, and not longer.
use forebear::{Request, WaitError};

fn waited() {
    let lent;
    {
        let request = Request::ready(String::new());
        lent = request.wait(); //~ E0597 `request` does not live long enough
    }
    println!("{lent:?}");
}

fn got() {
    let lent;
    {
        let request = Request::ready(String::new());
        lent = request.get(); //~ E0597 `request` does not live long enough
    }
    println!("{lent:?}");
}

fn forced() {
    let lent;
    {
        let request = Request::ready(String::new());
        lent = request.force(); //~ E0597 `request` does not live long enough
    }
    println!("{lent:?}");
}

fn told() {
    let lent;
    {
        let request = Request::ready(String::new());
        lent = request.outcome().is_some().then(|| request.outcome()); //~ E0597 `request` does not live long enough
    }
    println!("{}", matches!(lent, Some(Some(_))));
}

fn main() -> Result<(), WaitError> {
    waited();
    got();
    forced();
    told();
    Ok(())
}

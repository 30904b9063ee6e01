//! The feature `serde` of the crate: what programs tell each other survives JSON, and nonsense is refused.

use ubiverbs::{Access, Endpoint, Error, Reliable, RemoteSlice};

#[test]
fn endpoints_and_remote_slices_survive_json() -> Result<(), Error> {
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let endpoint = pd.queue_pair::<Reliable>(&cq).prepare()?.endpoint();
    let slice = pd.share(4096, Access::REMOTE_READ)?.remote_slice();

    let text = serde_json::to_string(&(&endpoint, slice)).expect("both are text");
    let (again, same): (Endpoint, RemoteSlice) = serde_json::from_str(&text).expect("as they were written");
    assert_eq!((again.to_string(), same.to_string()), (endpoint.to_string(), slice.to_string()));
    Ok(())
}

#[test]
fn nonsense_is_refused_with_the_reason() {
    let error = serde_json::from_str::<Endpoint>("\"nowhere\"").expect_err("that is no endpoint").to_string();
    assert!(!error.is_empty());
    let error = serde_json::from_str::<RemoteSlice>("17").expect_err("that is a number").to_string();
    assert!(error.contains("a remote slice"), "{error}");
}

//! A NIC that is told to use UDP for everything, in a process of its own.
#![allow(missing_docs)]

use ubiverbs::backend::{software, software_over_udp};
use ubiverbs::{Error, Reliable};

#[test]
fn the_nic_is_attached_once_and_everything_uses_it() -> Result<(), Error> {
    let first = software_over_udp()?;
    assert!(std::sync::Arc::ptr_eq(&first, &software_over_udp()?));
    assert!(std::sync::Arc::ptr_eq(&first, &software()?));
    let context = ubiverbs::device("ubi_lo")?.open()?;
    let pd = context.alloc_pd()?;
    let cq = context.completion_queue(16).create()?;
    let [a, b] = ubiverbs::connected_pair::<Reliable>(&pd, &cq)?;
    let receiving = b.recv(pd.allocate(64)?)?;
    a.send_inline(b"the long way round")?.wait()?;
    assert_eq!(receiving.wait()?.payload(), b"the long way round");
    Ok(())
}

//! A NIC that is told how to attach after it has.
#![allow(missing_docs)]

use ubiverbs::Error;
use ubiverbs::backend::{software, software_over_udp};

#[test]
fn a_nic_that_is_attached_stays_as_it_is() -> Result<(), Error> {
    software()?;
    let late = software_over_udp().expect_err("it is too late");
    assert!(late.to_string().contains("attached in another way"), "{late}");
    Ok(())
}

//! What the members of a group know and nobody else: they show that they know it, and never send it. Proofs are tags by
//! SipHash-2-4 (Aumasson and Bernstein, 2012) under a key that the secret gives.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The length of a tag.
pub const TAG_BYTES: usize = 16;

/// A secret that several processes have.
///
/// ```
/// let text = cluster::Secret::draw(); // one process draws it, and gives it to the others
/// let (ours, theirs) = (cluster::Secret::new(&text), cluster::Secret::new(&text));
/// let challenge = cluster::Secret::number();
/// let tag = theirs.tag(&[&challenge, b"rank 3"]);
/// assert!(ours.proves(&[&challenge, b"rank 3"], &tag));
/// assert!(!ours.proves(&[&challenge, b"rank 4"], &tag));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u64; 2]);

impl Secret {
    /// The secret that these bytes are. An attacker that sees a proof can try out secrets, so they must be hard to
    /// guess: [`Secret::draw`] makes such.
    pub fn new(bytes: impl AsRef<[u8]>) -> Secret {
        Secret([1, 2].map(|half| sip([half, 0], &[bytes.as_ref()])))
    }

    /// A secret as text that nobody guesses.
    pub fn draw() -> String {
        Secret::number().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A number that nobody guesses, and that does not come again.
    pub fn number() -> [u8; TAG_BYTES] {
        let half = || RandomState::new().hash_one(0u64).to_le_bytes();
        join([half(), half()])
    }

    /// Shows that one who knows the secret said this.
    pub fn tag(&self, said: &[&[u8]]) -> [u8; TAG_BYTES] {
        let Secret([low, high]) = *self;
        join([1, 2].map(|half| sip([low ^ half, high], said).to_le_bytes()))
    }

    /// Whether the tag shows that. Takes as long for a wrong tag as for the right one.
    pub fn proves(&self, said: &[&[u8]], tag: &[u8; TAG_BYTES]) -> bool {
        self.tag(said).iter().zip(tag).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
    }

    /// Another secret of those who know this one, for one purpose.
    pub(crate) fn derive(&self, purpose: &[u8]) -> Secret {
        Secret::new(self.tag(&[b"derived", purpose]))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[allow(deprecated, reason = "its replacement may become another function; this one is SipHash-2-4")]
fn sip([low, high]: [u64; 2], parts: &[&[u8]]) -> u64 {
    let mut hasher = std::hash::SipHasher::new_with_keys(low, high);
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish()
}

fn join([low, high]: [[u8; 8]; 2]) -> [u8; TAG_BYTES] {
    let mut both = [0; TAG_BYTES];
    both[..8].copy_from_slice(&low);
    both[8..].copy_from_slice(&high);
    both
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_fits_one_secret_and_one_sentence() {
        let secret = Secret::new("ours");
        let tag = secret.tag(&[b"one", b"two"]);
        assert!(secret.proves(&[b"one", b"two"], &tag));
        for said in [&[b"onet" as &[u8], b"wo"][..], &[b"onetwo"], &[b"one"], &[]] {
            assert!(!secret.proves(said, &tag));
        }
        for other in [Secret::new("theirs"), Secret::new(""), secret.derive(b"x")] {
            assert!(!other.proves(&[b"one", b"two"], &tag));
        }
        for bit in 0..8 * TAG_BYTES {
            let mut wrong = tag;
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(!secret.proves(&[b"one", b"two"], &wrong));
        }
        // Members may be built by different compilers.
        assert_eq!(u128::from_le_bytes(tag), 0xe137_2cfd_728d_3384_b40f_0ea6_ee6b_e0f1);
        assert_ne!(Secret::draw(), Secret::draw());
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}

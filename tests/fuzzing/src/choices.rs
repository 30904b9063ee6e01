//! Bytes as decisions.

/// Bytes as decisions; zero when there are no more.
pub struct Choices<'a> {
    /// Those that are left.
    pub bytes: &'a [u8],
}

impl<'a> Choices<'a> {
    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let front = self.slice(N);
        taken[..front.len()].copy_from_slice(front);
        taken
    }

    /// So many bytes, or as many as are left.
    pub fn slice(&mut self, length: usize) -> &'a [u8] {
        let (front, rest) = self.bytes.split_at(length.min(self.bytes.len()));
        self.bytes = rest;
        front
    }

    pub fn byte(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn long(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub fn one_in(&mut self, chances: u8) -> bool {
        self.byte() % chances == chances - 1
    }

    pub fn of<T: Copy>(&mut self, options: &[T]) -> T {
        options[usize::from(self.byte()) % options.len()]
    }
}

//! Messages under way: which host sends what to which, and since when.

/// A message that is to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Post {
    pub from: u32,
    pub to: u32,
    pub bytes: u32,
    /// The workload's own number.
    pub tag: u32,
}

/// A message that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub post: Post,
    /// When, in nanoseconds.
    pub at: u64,
    pub received: bool,
}

/// All that are not over. Numbers are used again.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    slots: Vec<Message>,
    free: Vec<u32>,
}

impl Messages {
    pub fn add(&mut self, message: Message) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = message;
                number
            }
            None => {
                self.slots.push(message);
                (self.slots.len() - 1) as u32
            }
        }
    }

    pub fn get_mut(&mut self, number: u32) -> Option<&mut Message> {
        self.slots.get_mut(number as usize)
    }

    pub fn remove(&mut self, number: u32) -> Option<Message> {
        let message = self.slots.get(number as usize).copied();
        if message.is_some() {
            self.free.push(number);
        }
        message
    }

    pub fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

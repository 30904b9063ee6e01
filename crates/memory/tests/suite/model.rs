//! Random regions, windows, changes and accesses against a plain model that keeps bytes in a vector and decides by the
//! book. Whatever the program, both must answer alike, byte for byte and cause for cause.

#![cfg(not(miri))]

use crate::harness::{Buffer, Pages, register};
use memory::{
    Access, Atomic, Bind, Change, Error, Key, Memory, ProtectionDomain, Qpn, Range, RefusalCause, RegionSpec, Subject,
    Translation, WindowType,
};
use proptest::prelude::*;

const SPACE: u64 = 96;

/// Who asks: two domains, two queue pairs, near or far.
fn subjects() -> impl Strategy<Value = Subject> {
    (1u32..3, 1u32..3, any::<bool>()).prop_map(|(domain, qpn, remote)| Subject {
        pd: ProtectionDomain(domain),
        qpn: Qpn::new(qpn),
        remote,
    })
}

fn rights() -> impl Strategy<Value = Access> {
    let bits =
        Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC | Access::MW_BIND;
    // All of them half of the time: a program that only meets refusals tests little.
    prop_oneof![
        Just(bits),
        (0u32..64).prop_map(Access::from_bits_truncate),
        (0u32..32).prop_map(|bits| Access::from_bits_truncate(bits | 1)),
    ]
}

/// Where in the address space: offsets of the buffer, at its edges or inside, or wild.
fn offsets() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..SPACE, 2 => (0..SPACE / 8).prop_map(|word| word * 8), 1 => SPACE - 2..SPACE + 3, 1 => any::<u64>()]
}

fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..40u64, 1 => 0..=SPACE + 1, 1 => any::<u64>()]
}

#[derive(Clone, Debug)]
enum Step {
    Register { offset: u64, length: u64, iova: Option<u64>, domain: u32, access: Access },
    Reregister { region: usize, place: Option<(u64, u64)>, domain: Option<u32>, access: Option<Access> },
    Deregister { object: usize },
    Allocate { domain: u32, type2: bool },
    Bind { window: usize, region: usize, offset: u64, length: u64, access: Access, subject: Subject, step: u32 },
    Invalidate { object: usize, subject: Subject },
    FreeWindow { object: usize },
    Check { object: usize, offset: u64, length: u64, access: Access, subject: Subject },
    Read { object: usize, offset: u64, length: u64, subject: Subject },
    Write { object: usize, offset: u64, length: u64, subject: Subject, byte: u8 },
    Add { object: usize, offset: u64, subject: Subject },
}

fn steps() -> impl Strategy<Value = Step> {
    let object = 0usize..8;
    let domain = 1u32..3;
    let iova = prop::option::of(prop_oneof![Just(0u64), Just(0x1000), Just(u64::MAX - 20), any::<u64>()]);
    prop_oneof![
        3 => (0..SPACE, 0..=SPACE, iova, domain.clone(), rights())
            .prop_map(|(offset, length, iova, domain, access)| Step::Register { offset, length: length.min(SPACE - offset), iova, domain, access }),
        1 => (object.clone(), prop::option::of((0..SPACE, 0..=SPACE)), prop::option::of(domain.clone()), prop::option::of(rights()))
            .prop_map(|(region, place, domain, access)| {
                let place = place.map(|(offset, length)| (offset, length.min(SPACE - offset)));
                Step::Reregister { region, place, domain, access }
            }),
        1 => object.clone().prop_map(|object| Step::Deregister { object }),
        2 => (domain, any::<bool>()).prop_map(|(domain, type2)| Step::Allocate { domain, type2 }),
        3 => (object.clone(), object.clone(), offsets(), lengths(), rights(), subjects(), 0u32..4)
            .prop_map(|(window, region, offset, length, access, subject, step)| Step::Bind { window, region, offset, length, access, subject, step }),
        1 => (object.clone(), subjects()).prop_map(|(object, subject)| Step::Invalidate { object, subject }),
        1 => object.clone().prop_map(|object| Step::FreeWindow { object }),
        3 => (object.clone(), offsets(), lengths(), rights(), subjects())
            .prop_map(|(object, offset, length, access, subject)| Step::Check { object, offset, length, access, subject }),
        3 => (object.clone(), offsets(), 0..40u64, subjects())
            .prop_map(|(object, offset, length, subject)| Step::Read { object, offset, length, subject }),
        5 => (object.clone(), offsets(), 0..40u64, subjects(), any::<u8>())
            .prop_map(|(object, offset, length, subject, byte)| Step::Write { object, offset, length, subject, byte }),
        2 => (object, offsets(), subjects()).prop_map(|(object, offset, subject)| Step::Add { object, offset, subject }),
    ]
}

/// An object of the model; dead ones keep their place, for their keys must stay dead.
#[derive(Clone, Debug)]
struct Object {
    key: Key,
    alive: bool,
    domain: ProtectionDomain,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Region { place: u64, length: u64, iova: Option<u64>, access: Access },
    Window { type2: bool, bound: Option<Bound>, invalidated: bool },
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    region: usize,
    /// In the buffer.
    place: u64,
    /// As the region's key sees it.
    address: u64,
    length: u64,
    access: Access,
    qpn: Qpn,
}

struct World {
    memory: Memory,
    buffer: Buffer,
    bytes: Vec<u8>,
    objects: Vec<Object>,
}

/// In numbers too wide to wrap.
fn inside(start: u64, length: u64, address: u64, wanted: u64) -> bool {
    let (start, length, address, wanted) =
        (u128::from(start), u128::from(length), u128::from(address), u128::from(wanted));
    address >= start && address + wanted <= start + length
}

impl World {
    fn start_of(&self, what: &What) -> u64 {
        match what {
            What::Region { access, .. } if access.contains(Access::ZERO_BASED) => 0,
            What::Region { iova: Some(iova), .. } => *iova,
            What::Region { place, .. } => self.buffer.address() + place,
            What::Window { bound: Some(bound), .. } if !bound.access.contains(Access::ZERO_BASED) => bound.address,
            What::Window { .. } => 0,
        }
    }

    fn windows(&self, region: usize) -> u32 {
        let bound = |object: &&Object| {
            object.alive && matches!(object.what, What::Window { bound: Some(bound), .. } if bound.region == region)
        };
        self.objects.iter().filter(bound).count() as u32
    }

    fn valid(&self, place: u64, length: u64, iova: Option<u64>, access: Access) -> Result<(), Error> {
        if access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) && !access.contains(Access::LOCAL_WRITE) {
            return Err(Error::LocalWriteMissing);
        }
        if length == 0 && (self.buffer.address() + place).is_multiple_of(Pages::SIZE as u64) {
            return Err(Error::Empty);
        }
        match iova {
            Some(address) if u128::from(address) + u128::from(length) > 1 << 64 => {
                Err(Error::AddressOverflow { address, length })
            }
            _ => Ok(()),
        }
    }

    /// What the book says: where in the buffer the range starts.
    fn judge(
        &self,
        object: &Object,
        subject: Subject,
        address: u64,
        wanted: u64,
        access: Access,
    ) -> Result<usize, RefusalCause> {
        if wanted == 0 {
            return Ok(0);
        }
        if !object.alive {
            return Err(RefusalCause::UnknownKey);
        }
        let window = matches!(object.what, What::Window { .. });
        if window && !subject.remote {
            return Err(RefusalCause::WrongKind);
        }
        if object.domain != subject.pd {
            return Err(RefusalCause::WrongProtectionDomain);
        }
        let (place, length, granted) = match &object.what {
            What::Region { place, length, access, .. } => (*place, *length, *access),
            What::Window { bound: None, invalidated: true, .. } => return Err(RefusalCause::Invalidated),
            What::Window { bound: None, .. } => return Err(RefusalCause::WindowUnbound),
            What::Window { bound: Some(bound), type2, .. } => {
                if *type2 && bound.qpn != subject.qpn {
                    return Err(RefusalCause::WrongQueuePair);
                }
                (bound.place, bound.length, bound.access)
            }
        };
        if !granted.contains(access) {
            return Err(RefusalCause::NotPermitted);
        }
        let start = self.start_of(&object.what);
        if !inside(start, length, address, wanted) {
            return Err(RefusalCause::OutOfBounds { start, length });
        }
        Ok((place + (address - start)) as usize)
    }

    /// An object and an address `offset` bytes into it (or before it).
    fn target(&self, object: usize, offset: u64) -> (Object, u64) {
        match self.objects.get(object) {
            Some(object) => (object.clone(), self.start_of(&object.what).wrapping_add(offset)),
            None => {
                let what = What::Window { type2: false, bound: None, invalidated: false };
                (Object { key: Key::new(0), alive: false, domain: ProtectionDomain(1), what }, offset)
            }
        }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Register { offset, length, iova, domain, access } => {
                let translation = Translation { iova, ..self.translation(offset, length) };
                let result =
                    register(&self.memory, &RegionSpec { translation, domain: ProtectionDomain(domain), access });
                match self.valid(offset, length, iova, access) {
                    Ok(()) => {
                        let what = What::Region { place: offset, length, iova, access };
                        let key = result.expect("valid");
                        self.objects.push(Object { key, alive: true, domain: ProtectionDomain(domain), what });
                    }
                    Err(error) => assert_eq!(result, Err(error)),
                }
            }
            Step::Reregister { region, place, domain, access } => self.reregister(region, place, domain, access),
            Step::Deregister { object } => {
                let (target, _) = self.target(object, 0);
                let key = target.key;
                let expected = match (target.alive, &target.what, self.windows(object)) {
                    (false, ..) => Err(Error::UnknownKey { key }),
                    (true, What::Window { .. }, _) => Err(Error::WrongKind { key }),
                    (true, _, 0) => Ok(()),
                    (true, _, windows) => Err(Error::WindowsBound { key, windows }),
                };
                assert_eq!(self.memory.deregister(key), expected);
                if expected.is_ok() {
                    self.objects[object].alive = false;
                }
            }
            Step::Allocate { domain, type2 } => {
                let kind = if type2 { WindowType::Type2 } else { WindowType::Type1 };
                let key = self.memory.allocate_window(ProtectionDomain(domain), kind).unwrap();
                let what = What::Window { type2, bound: None, invalidated: false };
                self.objects.push(Object { key, alive: true, domain: ProtectionDomain(domain), what });
            }
            Step::Bind { window, region, offset, length, access, subject, step } => {
                let (target, _) = self.target(window, 0);
                let (behind, address) = self.target(region, offset);
                let new_key = (0..step).fold(target.key, |key, _| key.next());
                let bind = Bind { window: target.key, new_key, region: behind.key, address, length, access };
                let expected = self.judge_bind(&target, &behind, &bind, subject);
                let result = self.memory.bind(subject, &bind).map_err(|refusal| refusal.cause);
                assert_eq!(result, expected.map(drop), "{bind:?}");
                if let Ok(place) = expected
                    && let What::Window { bound, invalidated, .. } = &mut self.objects[window].what
                {
                    *bound = (length > 0).then_some(Bound { region, place, address, length, access, qpn: subject.qpn });
                    *invalidated = false;
                    self.objects[window].key = new_key;
                }
            }
            Step::Invalidate { object, subject } => {
                let (target, _) = self.target(object, 0);
                let expected = match &target.what {
                    _ if !target.alive => Err(RefusalCause::UnknownKey),
                    _ if target.domain != subject.pd => Err(RefusalCause::WrongProtectionDomain),
                    What::Region { .. } | What::Window { type2: false, .. } => Err(RefusalCause::WrongKind),
                    What::Window { bound: Some(bound), .. } if bound.qpn != subject.qpn => {
                        Err(RefusalCause::WrongQueuePair)
                    }
                    What::Window { bound: Some(_), .. } => Ok(()),
                    What::Window { invalidated: true, .. } => Err(RefusalCause::Invalidated),
                    What::Window { .. } => Err(RefusalCause::WindowUnbound),
                };
                assert_eq!(self.memory.invalidate(subject, target.key).map_err(|refusal| refusal.cause), expected);
                if expected.is_ok()
                    && let What::Window { bound, invalidated, .. } = &mut self.objects[object].what
                {
                    (*bound, *invalidated) = (None, true);
                }
            }
            Step::FreeWindow { object } => {
                let (target, _) = self.target(object, 0);
                let key = target.key;
                let expected = match target.what {
                    _ if !target.alive => Err(Error::UnknownKey { key }),
                    What::Region { .. } => Err(Error::WrongKind { key }),
                    What::Window { .. } => Ok(()),
                };
                assert_eq!(self.memory.free_window(key), expected);
                if expected.is_ok() {
                    self.objects[object].alive = false;
                }
            }
            Step::Check { object, offset, length, access, subject } => {
                let (target, address) = self.target(object, offset);
                let expected = self.judge(&target, subject, address, length, access).map(drop);
                let range = Range { key: target.key, address, length };
                assert_eq!(self.memory.check(subject, range, access).map_err(|refusal| refusal.cause), expected);
                let lent = self.memory.lend(subject, range, access);
                assert_eq!(lent.map(|guard| assert_eq!(guard.len() as u64, length)).map_err(|r| r.cause), expected);
            }
            Step::Read { object, offset, length, subject } => {
                let (target, address) = self.target(object, offset);
                let access = if subject.remote { Access::REMOTE_READ } else { Access::empty() };
                let expected = self.judge(&target, subject, address, length, access);
                let mut out = vec![0; length as usize];
                let result = self.memory.read(subject, target.key, address, &mut out).map_err(|refusal| refusal.cause);
                assert_eq!(result, expected.map(drop));
                match expected {
                    Ok(at) => assert_eq!(out, self.bytes[at..at + length as usize]),
                    Err(_) => assert!(out.iter().all(|byte| *byte == 0)),
                }
            }
            Step::Write { object, offset, length, subject, byte } => {
                let (target, address) = self.target(object, offset);
                let access = if subject.remote { Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
                let expected = self.judge(&target, subject, address, length, access);
                let bytes: Vec<u8> = (0..length).map(|i| byte.wrapping_add(i as u8)).collect();
                let result = self.memory.write(subject, target.key, address, &bytes).map_err(|refusal| refusal.cause);
                assert_eq!(result, expected.map(drop));
                if let Ok(at) = expected {
                    self.bytes[at..at + bytes.len()].copy_from_slice(&bytes);
                }
            }
            Step::Add { object, offset, subject } => self.add(object, offset, subject),
        }
        assert_eq!(self.buffer.bytes(), self.bytes);
    }

    fn translation(&self, offset: u64, length: u64) -> Translation {
        Translation::new(self.buffer.pointer().wrapping_add(offset as usize), length as usize)
    }

    fn reregister(&mut self, region: usize, place: Option<(u64, u64)>, domain: Option<u32>, access: Option<Access>) {
        let (target, _) = self.target(region, 0);
        let key = target.key;
        let change = Change {
            translation: place.map(|(offset, length)| self.translation(offset, length)),
            domain: domain.map(ProtectionDomain),
            access,
        };
        let mut next = target.clone();
        let expected = match &mut next.what {
            _ if change == Change::default() => Err(Error::NothingToChange),
            _ if !target.alive => Err(Error::UnknownKey { key }),
            What::Window { .. } => Err(Error::WrongKind { key }),
            What::Region { .. } if self.windows(region) > 0 => {
                Err(Error::WindowsBound { key, windows: self.windows(region) })
            }
            What::Region { place: at, length: of, iova, access: rights } => {
                if let Some((offset, length)) = place {
                    (*at, *of, *iova) = (offset, length, None);
                }
                *rights = access.unwrap_or(*rights);
                next.domain = change.domain.unwrap_or(next.domain);
                self.valid(*at, *of, *iova, *rights)
            }
        };
        // SAFETY: the buffer outlives the memory.
        assert_eq!(unsafe { self.memory.reregister(key, &change) }, expected);
        if expected.is_ok() {
            self.objects[region] = next;
        }
    }

    /// The place in the buffer where the window would start.
    fn judge_bind(&self, window: &Object, behind: &Object, bind: &Bind, subject: Subject) -> Result<u64, RefusalCause> {
        let What::Window { type2, bound, .. } = &window.what else { return Err(RefusalCause::UnknownKey) };
        if !window.alive {
            return Err(RefusalCause::UnknownKey);
        }
        if window.domain != subject.pd {
            return Err(RefusalCause::WrongProtectionDomain);
        }
        let wrong = if *type2 { bound.is_some() || bind.length == 0 } else { bind.new_key == bind.window };
        if wrong {
            return Err(RefusalCause::WrongKind);
        }
        if bind.length == 0 {
            return Ok(0);
        }
        let What::Region { place, length, access, .. } = behind.what else { return Err(RefusalCause::UnknownKey) };
        if !behind.alive {
            return Err(RefusalCause::UnknownKey);
        }
        if behind.domain != subject.pd {
            return Err(RefusalCause::WrongProtectionDomain);
        }
        let peers_write = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !access.contains(Access::MW_BIND) || peers_write && !access.contains(Access::LOCAL_WRITE) {
            return Err(RefusalCause::NotPermitted);
        }
        if access.contains(Access::ZERO_BASED) {
            return Err(RefusalCause::WrongKind);
        }
        let start = self.start_of(&behind.what);
        if !inside(start, length, bind.address, bind.length) {
            return Err(RefusalCause::OutOfBounds { start, length });
        }
        Ok(place + (bind.address - start))
    }

    fn add(&mut self, object: usize, offset: u64, subject: Subject) {
        let (target, address) = self.target(object, offset);
        let expected = self.judge(&target, subject, address, 8, Access::REMOTE_ATOMIC).and_then(|at| {
            // The buffer itself is aligned.
            let aligned = address.is_multiple_of(8) && at.is_multiple_of(8);
            if aligned { Ok(at) } else { Err(RefusalCause::Misaligned) }
        });
        let operation = Atomic::FetchAdd { add: 0x0102_0304_0506_0708 };
        let result = self.memory.atomic(subject, target.key, address, operation).map_err(|refusal| refusal.cause);
        match expected {
            Ok(at) => {
                let cell: &mut [u8; 8] = (&mut self.bytes[at..at + 8]).try_into().unwrap();
                let before = u64::from_ne_bytes(*cell);
                assert_eq!(result, Ok(before));
                *cell = before.wrapping_add(0x0102_0304_0506_0708).to_ne_bytes();
            }
            Err(cause) => assert_eq!(result, Err(cause)),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_answers_by_the_book(steps in prop::collection::vec(steps(), 1..60)) {
        let buffer = Buffer::new(SPACE as usize);
        let mut world = World { memory: Memory::new(), bytes: buffer.bytes(), buffer, objects: Vec::new() };
        for step in &steps {
            world.run(step);
        }
    }
}

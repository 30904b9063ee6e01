//! Attaching to the host: everything a NIC is made of, in the order in which it needs one another.

use crate::cm::Cm;
use crate::drive::engine_thread;
use crate::environment;
use crate::error::{Error, system};
use crate::ground::{Ground, Options};
use crate::gsi::Gsi;
use crate::interfaces::Changes;
use crate::links::packets::Packets;
use crate::links::registry::{Entry, Registry};
use crate::links::udp::Udp;
use crate::links::unread_watch::UnreadWatch;
use crate::links::windows::SharedWindow;
use crate::nic::background::Background;
use crate::nic::peers::Questions;
#[cfg(feature = "checks")]
use crate::nic::witness::LiveWitness;
use crate::nic::{Nic, limits, process};
use crate::objects::groups::Groups;
use crate::objects::numbers::Numbers;
use crate::objects::table::Table;
use crate::progress::delayed_ack::DelayedAckOwner;
use crate::progress::engine::Engine;
use crate::progress::piggybacked_ack::PiggybackOwner;
use crate::progress::ready::ReadyQueue;
use crate::progress::timers::Timers;
use crate::progress::watch::Watch;
use crate::record::clock::Clock;
use crate::record::drops::Drops;
use crate::record::failures::Failures;
use crate::record::tracing::Tracing;
#[cfg(feature = "checks")]
use crate::record::why;
use crate::tuning::PEER_WINDOW_MAX_BYTES;
use ::host::ports::Ports;
use ::host::process_watch::ProcessWatch;
use ::host::slots::Slots;
use latch::Rank;
use latch::plain::{Mutex, RwLock};
use link::faults::Plan;
use link::shared::Exchange;
use link::udp::attachment::AttachError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};
use transport::congestion::WindowConfig;

impl Nic {
    /// Attaches to this host.
    pub fn open() -> Result<Arc<Nic>, Error> {
        Nic::open_with(Options::default())
    }

    /// Attaches to this host in a particular way.
    pub fn open_with(options: Options) -> Result<Arc<Nic>, Error> {
        Nic::open_with_links(options, Vec::new())
    }

    /// The same with links that are preferred to all others.
    pub(crate) fn open_with_links(options: Options, first: Vec<Entry>) -> Result<Arc<Nic>, Error> {
        process::guard_forks();
        let slots = Slots::open().map_err(system("cannot reach the registry of this host"))?;
        let numbers = Numbers::new(&slots, limits::MAX_QP)?;
        let options = Options {
            only_udp: options.only_udp || environment::only_udp(),
            ignores_congestion: options.ignores_congestion || environment::ignores_congestion(),
            stops_without_peer: options.stops_without_peer || environment::stops_without_peer(),
        };
        if let Some(patience) = environment::gpu_patience() {
            memory::set_gpu_patience(patience);
        }
        let ports = Ports::new(&slots);
        let udp = Arc::new(Udp::open(&slots, &ports)?);
        let exchange = Exchange::new(&slots, !options.only_udp);
        let exchange = Arc::new(exchange.map_err(system("cannot make shared memory for other processes"))?);
        let plan = Plan::from_environment().map_err(AttachError::from)?;
        let links = Registry::new(first, &exchange, &udp, plan.as_ref());
        let limit = udp.buffer_size().unwrap_or(transport::congestion::STOCK_BUFFER);
        // Peers ask for as large a buffer as we do, and mostly get as much. A peer that has less tells by losing
        // packets.
        let peer_window = WindowConfig { limit: limit.min(PEER_WINDOW_MAX_BYTES), ..WindowConfig::default() };
        let capture = environment::capture().map(|capture| Mutex::new(Rank::Capture, capture));
        if capture.is_some() {
            udp.tell_all();
        }
        let (cm, gsi) = (Cm::new(numbers.slot()), Gsi::new(numbers.slot()));
        let ground = Ground {
            memory: memory::Memory::new(),
            trace: Tracing::default(),
            drops: Drops::default(),
            failures: Failures::new(environment::notes_failures()),
            capture,
            timers: Timers::new(),
            udp,
            exchange,
            unread_watch: UnreadWatch::default(),
            process_watch: ProcessWatch::new(&slots).map_err(system("cannot watch other processes"))?,
            slots: slots.clone(),
            ports,
            groups: Groups::default(),
            options,
            clock: Clock::start(),
            devices: RwLock::new(Rank::Devices, Vec::new()),
            numbers,
            srqs: RwLock::new(Rank::SharedQueues, HashMap::new()),
            next_srq: AtomicU32::new(1),
            next_cq: AtomicU32::new(1),
            links,
            packets: Packets::new(&slots, plan),
            ready: ReadyQueue::default(),
            windows: Mutex::new(Rank::Windows, HashMap::new()),
            local_receive_window: Arc::new(SharedWindow::new(WindowConfig { limit, ..WindowConfig::default() })),
            peer_window,
            engine: Arc::new(Engine::new().map_err(system("cannot make the engine's descriptors"))?),
            epoch: AtomicU32::new(0),
            delayed_ack_owner: DelayedAckOwner::default(),
            piggyback_owner: PiggybackOwner::default(),
            moved: AtomicU64::new(0),
        };
        let nic = Arc::new(Nic {
            ground,
            changes: changes()?,
            contexts: Mutex::new(Rank::Contexts, Vec::new()),
            cqs: Mutex::new(Rank::CompletionQueues, Vec::new()),
            counted_as_ended: AtomicBool::new(false),
            questions: Questions::default(),
            inquiries: Background::default(),
            counting: Background::default(),
            first_opened: OnceLock::new(),
            reserved_numbers: AtomicU32::new(0),
            qps: Table::default(),
            watch: Watch::new().map_err(system("cannot make a descriptor for waiting threads"))?,
            gone_peers: Mutex::new(Rank::GonePeers, Vec::new()),
            cm,
            gsi,
        });
        nic.answer_inquiries();
        nic.answer_counters();
        nic.trace.to(environment::sink());
        nic.check();
        process::tell_past(&nic);
        if let Some(capture) = &nic.capture {
            let weak = Arc::downgrade(&nic);
            capture.lock().when_ended(move |errno| {
                if let Some(nic) = weak.upgrade().filter(|nic| nic.trace.is_on()) {
                    let kind = trace::Kind::CaptureEnded { errno };
                    nic.trace.record(&trace::Event { at: nic.now().as_nanos(), qpn: None, kind });
                }
            });
        }
        nic.follow_interfaces().map_err(system("cannot list the network interfaces"))?;
        engine_thread::start(&nic).map_err(system("cannot start the engine thread"))?;
        process::flush_at_exit(&nic);
        Ok(nic)
    }
}

impl Nic {
    /// Checks the program, if the environment asks for it.
    fn check(self: &Arc<Nic>) {
        #[cfg(feature = "checks")]
        if let Some(asked) = environment::asked() {
            self.check_as(asked);
        }
        #[cfg(not(feature = "checks"))]
        environment::no_checks();
    }

    /// Checks the program as its code asks for it: findings go to `listener`. If the environment has asked already, its
    /// settings count.
    #[cfg(feature = "checks")]
    pub fn listen_to_findings(
        self: &Arc<Nic>,
        settings: checks::Settings,
        listener: std::sync::mpsc::Sender<checks::Finding>,
    ) {
        if !self.trace.is_checked() && self.check_as(why::Asked::in_code(settings, listener.clone())) {
            return;
        }
        if let Some(why) = self.trace.why() {
            why.add_listener(listener);
        }
    }

    /// Checks the program so. There can be one checker; answers whether it is this.
    #[cfg(feature = "checks")]
    fn check_as(self: &Arc<Nic>, asked: why::Asked) -> bool {
        let engine = Arc::clone(&self.engine);
        let witness = Box::new(LiveWitness::new(self));
        self.trace.check(why::Why::new(asked, witness, move || engine.ring()))
    }
}

/// The kernel's notices of changes to interfaces; none where the system forbids to ask. A NIC that was short of a
/// descriptor for it would never hear of any.
fn changes() -> Result<Option<Changes>, Error> {
    match Changes::listen() {
        Err(source)
            if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM)) =>
        {
            Err(Error::System { what: "cannot listen to changes of the network interfaces", source })
        }
        heard => Ok(heard.ok()),
    }
}

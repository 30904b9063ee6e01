//! Attaching to the host: everything a NIC is made of, in the order in which it needs one another.

use crate::cm::Cm;
use crate::drive::engine_thread;
use crate::environment;
use crate::error::{Error, system};
use crate::ground::host_share::HostShare;
use crate::ground::ledger::Ledger;
use crate::ground::nic_links::NicLinks;
use crate::ground::progress_state::ProgressState;
use crate::ground::records::Records;
use crate::ground::{Ground, Options};
use crate::gsi::Gsi;
use crate::interfaces::Changes;
use crate::links::packets::Packets;
use crate::links::region_publisher::RegionPublisher;
use crate::links::registry::{LinkEntry, Registry};
use crate::links::udp::Udp;
use crate::links::unread_watch::UnreadWatch;
use crate::links::windows::ProcessWindows;
#[cfg(feature = "checks")]
use crate::nic::witness::LiveWitness;
use crate::nic::{BackgroundWork, Nic, NicObjects, limits, process};
use crate::objects::groups::Groups;
use crate::objects::numbers::Numbers;
use crate::objects::shared_queue::SharedQueueTable;
use crate::progress::engine::Engine;
use crate::progress::watch::Watch;
use crate::record::clock::Clock;
use crate::record::drops::Drops;
use crate::record::failures::Failures;
use crate::record::tracing::Tracing;
#[cfg(feature = "checks")]
use crate::record::why;
use crate::scripts::Scripts;
use crate::tuning::PEER_WINDOW_MAX_BYTES;
use ::host::ports::Ports;
use ::host::process_watch::ProcessWatch;
use ::host::slots::Slots;
use latch::Rank;
use latch::plain::{Mutex, RwLock};
use link::faults::Plan;
use link::shared::Exchange;
use link::shared::direct::Published;
use link::udp::attachment::AttachError;
use profiles::KeyLayout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
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

    /// Attaches to this host, with links that are preferred to all others.
    pub(crate) fn open_with_links(options: Options, first: Vec<LinkEntry>) -> Result<Arc<Nic>, Error> {
        process::guard_forks();
        let ground = Ground::attach(options, first)?;
        let slot = ground.host.numbers.slot();
        let nic = Arc::new(Nic {
            ground,
            objects: NicObjects::default(),
            cm: Cm::new(slot),
            gsi: Gsi::new(slot),
            background: BackgroundWork::default(),
            changes: changes()?,
            watch: Watch::new().map_err(system("cannot make a descriptor for waiting threads"))?,
            gone_peers: Mutex::new(Rank::GonePeers, Vec::new()),
            counted_as_ended: AtomicBool::new(false),
        });
        nic.answer_inquiries();
        nic.name_judged_work();
        nic.take_injections();
        nic.answer_counters();
        nic.ground.records.trace.to(environment::sink());
        #[cfg(feature = "capture")]
        if let Some(recorder) = environment::recorder() {
            nic.ground.records.trace.record_in(recorder);
        }
        #[cfg(not(feature = "capture"))]
        environment::no_recorder();
        nic.check();
        nic.ground.open_memory();
        process::tell_past(&nic);
        if let Some(capture) = &nic.ground.records.capture {
            let weak = Arc::downgrade(&nic);
            capture.lock().when_ended(move |errno| {
                if let Some(nic) = weak.upgrade().filter(|nic| nic.ground.records.trace.is_on()) {
                    let kind = trace::Kind::CaptureEnded { errno };
                    nic.ground.records.trace.record(&trace::Event { at: nic.now().as_nanos(), qpn: None, kind });
                }
            });
        }
        nic.follow_interfaces().map_err(system("cannot list the network interfaces"))?;
        engine_thread::start(&nic).map_err(system("cannot start the engine thread"))?;
        process::flush_at_exit(&nic);
        nic.start_scripts();
        nic.begin_moving_gids().map_err(system("cannot start the thread that moves GID tables"))?;
        Ok(nic)
    }
}

impl Ground {
    /// What a NIC stands on, attached to this host: no thread drives it, and it has no device yet.
    pub(crate) fn attach(options: Options, first: Vec<LinkEntry>) -> Result<Ground, Error> {
        let slots = Slots::open().map_err(system("cannot reach the registry of this host"))?;
        let numbers = Numbers::new(&slots, limits::MAX_QP)?;
        let options = Options {
            only_udp: options.only_udp || environment::only_udp(),
            ignores_congestion: options.ignores_congestion || environment::ignores_congestion(),
            weakness: options.weakness,
            stops_without_peer: options.stops_without_peer || environment::stops_without_peer(),
            nics: options.nics.or_else(environment::nics),
        };
        if let Some(patience) = environment::gpu_patience() {
            memory::set_gpu_patience(patience);
        }
        let ports = Ports::new(&slots);
        let udp = Arc::new(Udp::open(&slots, &ports)?);
        let exchange = Exchange::new(&slots, !options.only_udp);
        let exchange = Arc::new(exchange.map_err(system("cannot make shared memory for other processes"))?);
        let plan = Plan::from_environment().map_err(AttachError::from)?;
        let limit = udp.buffer_size().unwrap_or(transport::congestion::STOCK_BUFFER);
        let local_receive = WindowConfig { limit, ..WindowConfig::default() };
        // Peers ask for as large a buffer as we do, and mostly get as much. A peer that has less tells by losing
        // packets.
        let towards_peers = WindowConfig { limit: limit.min(PEER_WINDOW_MAX_BYTES), ..WindowConfig::default() };
        let capture = environment::capture().map(|capture| Mutex::new(Rank::Capture, capture));
        if capture.is_some() {
            udp.tell_all();
        }
        let published = published_memory(&exchange, plan.is_some());
        let memory = memory::Memory::with_limits(memory_limits());
        if let Some(published) = &published {
            memory.publish_to(Box::new(RegionPublisher(Arc::clone(published))));
            exchange.publish(Arc::clone(published));
        }
        let engine = Engine::new().map_err(system("cannot make the engine's descriptors"))?;
        Ok(Ground {
            memory,
            options,
            records: Records {
                clock: Clock::start(),
                trace: Tracing::default(),
                drops: Drops::default(),
                failures: Failures::new(environment::notes_failures()),
                capture,
            },
            ledger: Ledger::default(),
            scripts: Scripts::default(),
            links: NicLinks {
                registry: Registry::new(first, &exchange, &udp, plan.as_ref()),
                udp,
                exchange,
                published,
                packets: Packets::new(&slots, plan),
                unread_watch: UnreadWatch::default(),
                groups: Groups::default(),
                epoch: AtomicU32::new(0),
                black_holes: RwLock::new(Rank::BlackHoles, Vec::new()),
            },
            host: HostShare {
                devices: RwLock::new(Rank::Devices, Vec::new()),
                process_watch: ProcessWatch::new(&slots).map_err(system("cannot watch other processes"))?,
                slots,
                numbers,
                ports,
            },
            windows: ProcessWindows::new(towards_peers, local_receive),
            progress: ProgressState::new(Arc::new(engine)),
            shared_queues: SharedQueueTable::default(),
        })
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
        if !self.ground.records.trace.is_checked() && self.check_as(why::Asked::in_code(settings, listener.clone())) {
            return;
        }
        if let Some(why) = self.ground.records.trace.why() {
            why.add_listener(listener);
        }
    }

    /// Checks the program so. There can be one checker; returns whether it is this.
    #[cfg(feature = "checks")]
    fn check_as(self: &Arc<Nic>, asked: why::Asked) -> bool {
        #[cfg(feature = "capture")]
        let asked = why::Asked { recorder: self.ground.records.trace.recorder(), ..asked };
        let engine = Arc::clone(&self.ground.progress.engine);
        let witness = Box::new(LiveWitness::new(self));
        let is_first = self.ground.records.trace.check(why::Why::new(asked, witness, move || engine.ring()));
        self.ground.open_memory();
        is_first
    }
}

/// What peers will find of this process's memory; none where packets are wanted, or the system has no table for it.
fn published_memory(exchange: &Exchange, has_faults: bool) -> Option<Arc<Published>> {
    // A sanitizer is told of what this process does.
    let is_judged = latch::sanitizer::is_present();
    if has_faults || is_judged || !exchange.is_willing() || environment::sends_packets_only() {
        return None;
    }
    if environment::replaces_pages() {
        memory::replace_pages();
    }
    Published::new().ok().map(Arc::new)
}

/// What may be registered, and how keys look: as on the first card that the NICs are like.
fn memory_limits() -> memory::Limits {
    let keys = match environment::profile_of(0).map(|profile| profile.registration.key_layout) {
        None | Some(KeyLayout::Random) => memory::KeyLayout::Random,
        Some(KeyLayout::IndexAndVariant) => memory::KeyLayout::IndexAndVariant,
        Some(KeyLayout::Small) => memory::KeyLayout::Small,
    };
    memory::Limits { keys, ..memory::Limits::default() }
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

//! The second side of a measurement: an echo, a sink, or memory that is read and written.

use super::bare::Bare;
use super::calls::Called;
use super::first::Connections;
use super::machine::{self, Side};
use super::many_queue_pairs::{self, ManyQueuePairs};
use super::sockets::{self, Sockets, Stream};
use super::threads::Team;
use super::verbs::{Inbox, Line, Prepared};
use super::{Carrier, Extras, Kind, MeasureAnswer, Order, Run, WaitMode};
use crate::exit::Failure;
use crate::meeting::{Link, Meeting};
use crate::peer;

/// What it holds between orders.
#[derive(Default)]
pub struct Partner {
    line: Option<Line>,
    /// The longest message that it was prepared for.
    largest: usize,
    sockets: Option<Sockets>,
    bare: Option<Bare>,
    called: Option<Called>,
    crowd: Option<ManyQueuePairs>,
    team: Option<Team>,
    /// The partner that it leads itself.
    led: Option<(Meeting, Connections)>,
}

impl Partner {
    /// Carries out an order.
    pub fn measure(&mut self, order: Order, meeting: &mut Meeting) -> Result<(), Failure> {
        if order.is_private() && !meeting.is_child() {
            return Err(Failure::Nonsense("what only a process of this program may ask for".into()));
        }
        if !order.is_bounded() {
            return Err(Failure::Nonsense("more than is ever measured".into()));
        }
        match order {
            Order::Connect { end, largest } => {
                self.largest = largest;
                let prepared = Prepared::new(&meeting.station, largest)?;
                let ours = prepared.end();
                self.line = Some(prepared.connect(&meeting.station, &end)?);
                if meeting.local {
                    machine::settle(Side::Second);
                }
                tell(meeting, MeasureAnswer::Connected(ours))
            }
            Order::Listen { unix } => {
                let accepted = sockets::accept(meeting.tcp, unix, |port, unix| {
                    meeting.control.tell(&peer::PeerAnswer::Measure(MeasureAnswer::Listening { port, unix }))
                })?;
                self.sockets = Some(accepted);
                Ok(())
            }
            Order::Bare { largest } => {
                let bare = self.bare.insert(Bare::accept(meeting.memory()?, largest)?);
                let address = bare.address();
                tell(meeting, MeasureAnswer::Bare { address })
            }
            Order::Welcome => {
                let (called, places) = Called::new(meeting.station.address)?;
                self.called = Some(called);
                tell(meeting, MeasureAnswer::Welcoming(places))
            }
            Order::ManyQueuePairs { endpoints } => {
                let crowd = match &mut self.crowd {
                    Some(crowd) => crowd,
                    none => none.insert(ManyQueuePairs::new(&meeting.station)?),
                };
                let prepared =
                    crowd.prepare(&meeting.station, endpoints.len().min(many_queue_pairs::ENDPOINTS_PER_MESSAGE))?;
                let ours = many_queue_pairs::endpoints(&prepared);
                crowd.connect(prepared, &endpoints)?;
                tell(meeting, MeasureAnswer::ManyQueuePairs { endpoints: ours })
            }
            Order::Team { ends } => {
                let prepared = Team::prepare(&meeting.station, ends.len())?;
                let ours = prepared.iter().map(Prepared::end).collect();
                self.team = Some(Team::connect(&meeting.station, prepared, &ends)?);
                tell(meeting, MeasureAnswer::Teamed { ends: ours })
            }
            Order::Lead { largest } => {
                let mut own = Meeting::start(Some(meeting.station.context.name()), Link::Udp)?;
                let connections = Connections::new(&mut own, largest, Extras::default())?;
                self.led = Some((own, connections));
                tell(meeting, MeasureAnswer::Leading)
            }
            Order::Turn(run) => {
                let (own, connections) = self.led.as_mut().ok_or_else(unprepared)?;
                let taken = connections.run(own, run)?;
                tell(meeting, MeasureAnswer::Turned(taken))
            }
            Order::Run(run) => self.run(run, meeting),
            Order::Done => Ok(()),
        }
    }

    fn run(&mut self, run: Run, meeting: &mut Meeting) -> Result<(), Failure> {
        if run.point.size > self.largest.max(super::THREADS_SIZE) {
            return Err(unprepared());
        }
        if let Kind::Threads(among) = run.point.kind {
            let team = self.team.as_mut().ok_or_else(unprepared)?;
            let inboxes = team.ready(run, among)?;
            meeting.control.tell(&peer::PeerAnswer::Ready)?;
            team.second(run, among, inboxes, meeting.control.gone())?;
            done(meeting)?;
            return tell(meeting, MeasureAnswer::Ran);
        }
        let line = self.line.as_mut().ok_or_else(unprepared)?;
        let inbox = if run.point.carrier.is_verb() { Some(line.prepare(run)?) } else { None };
        meeting.control.tell(&peer::PeerAnswer::Ready)?;
        match run.point.carrier {
            _ if run.point.kind == Kind::Connect => {
                self.called.as_ref().ok_or_else(unprepared)?.second(run)?;
                done(meeting)?;
            }
            Carrier::Tcp | Carrier::Unix => {
                let stream = stream(self.sockets.as_mut(), run.point.carrier)?;
                sockets::second(stream, run, &meeting.control)?;
                done(meeting)?;
            }
            carrier if carrier.is_limit() => {
                self.bare.as_mut().ok_or_else(unprepared)?.second(run, &meeting.control)?;
                done(meeting)?;
            }
            _ => {
                line.second(run, inbox.unwrap_or_else(Inbox::empty), meeting.control.gone())?;
                stand_by(line, run, meeting)?;
            }
        }
        tell(meeting, MeasureAnswer::Ran)
    }
}

/// The socket that carries it.
pub fn stream(sockets: Option<&mut Sockets>, carrier: Carrier) -> Result<&mut dyn Stream, Failure> {
    let sockets = sockets.ok_or_else(unprepared)?;
    match carrier {
        Carrier::Unix => Ok(sockets.unix.as_mut().ok_or_else(unprepared)?),
        _ => Ok(&mut sockets.tcp),
    }
}

fn unprepared() -> Failure {
    Failure::Nonsense("to run before the connections were made".into())
}

fn tell(meeting: &mut Meeting, answer: MeasureAnswer) -> Result<(), Failure> {
    meeting.control.tell(&peer::PeerAnswer::Measure(answer))
}

/// Waits until the first side says that it is done, as the run says: without looking at the NIC, or driving it.
fn stand_by(line: &mut Line, run: Run, meeting: &Meeting) -> Result<(), Failure> {
    if run.point.waiting != WaitMode::Spin {
        return done(meeting);
    }
    // Hearing costs more than looking; and where there is one processor, the first side needs it.
    let (looks, alone) = if machine::processors() > 1 { (64, true) } else { (4, false) };
    loop {
        for _ in 0..looks {
            line.look()?;
        }
        if !alone {
            std::thread::yield_now();
        }
        if let Some(order) = meeting.control.heard()? {
            return expect_done(order);
        }
    }
}

fn done(meeting: &Meeting) -> Result<(), Failure> {
    match meeting.control.next()? {
        Some(order) => expect_done(order),
        None => Err(Failure::PeerGone),
    }
}

fn expect_done(order: peer::Order) -> Result<(), Failure> {
    match order {
        peer::Order::Measure(Order::Done) => Ok(()),
        other => Err(Failure::Nonsense(format!("{other:?} in the middle of a run"))),
    }
}

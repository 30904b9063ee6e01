// What is looked up while drawing: for each lane, process and kind the events in order of time, sums over them, work
// requests in rows, and what is worth a mark from afar. Counts of any stretch of time are then two binary searches, so
// drawing costs what the screen has, not what the run has.

const KIND = {
  CALL: 0, POST: 1, STATE: 2, SENT: 3, RECEIVED: 4, DROPPED: 5, RETRY: 6, NAK: 7, COMPLETION: 8, POLL: 9, ASYNC: 10,
  FINDING: 11, INJECTED: 12, ENGINE: 13, ACCESS: 14, FLOW: 15, SPAN: 16, OTHER: 17,
};
const KIND_COUNT = 18;
const FLAG = { AGAIN: 1, LOST: 2, DUPLICATE: 4, NAK: 8, ANSWER: 16, CONTROL: 32, ERROR: 64 };
const TROUBLE_FLAGS = FLAG.AGAIN | FLAG.LOST | FLAG.DUPLICATE | FLAG.NAK | FLAG.ERROR;

const STEP = { POSTED: 0, SENT: 1, ARRIVED: 2, PLACED: 3, COMPLETED: 4, POLLED: 5 };

// Work requests under way at once are drawn in so many rows at most.
const MESSAGE_ROWS_MAX = 5;
const SPAN_ROWS_MAX = 8;

function buildModel(run) {
  const { events, lanes, processes } = run;
  const owners = lanes.length + processes.length;
  const model = { run, owners };

  // Fields that packets are drawn and found by.
  model.fieldOf = run.shapes.map((fields) => new Map(fields.map((field) => [field.name, field])));

  // Events by owner and kind. An owner is a lane, or the process for what happened at none.
  const keys = new Uint32Array(events.count);
  const starts = new Uint32Array(owners * KIND_COUNT + 1);
  for (let event = 0; event < events.count; event++) {
    const lane = events.lane[event];
    const owner = lane > 0 ? lane - 1 : lanes.length + events.process[event];
    keys[event] = owner * KIND_COUNT + Math.min(events.kind[event], KIND_COUNT - 1);
    starts[keys[event] + 1]++;
  }
  for (let key = 0; key < owners * KIND_COUNT; key++) starts[key + 1] += starts[key];
  const fill = starts.slice();
  const order = new Uint32Array(events.count);
  const times = new Float64Array(events.count);
  for (let event = 0; event < events.count; event++) {
    const place = fill[keys[event]]++;
    order[place] = event;
    times[place] = events.time[event];
  }
  const sums = new Float64Array(events.count + 1);
  const bytesOf = model.fieldOf.map((fields) => fields.get('bytes')?.values);
  for (let place = 0; place < order.length; place++) {
    const event = order[place];
    const bytes = events.kind[event] === KIND.SENT ? bytesOf[events.shape[event]] : undefined;
    sums[place + 1] = sums[place] + (bytes === undefined ? 0 : Number(bytes[events.row[event]]));
  }
  model.list = (owner, kind) => {
    const key = owner * KIND_COUNT + kind;
    return { order, times, sums, from: starts[key], to: starts[key + 1] };
  };
  model.laneList = (lane, kind) => model.list(lane, kind);
  model.processList = (process, kind) => model.list(lanes.length + process, kind);

  // The longest that a call, span or packet of an owner takes: from there on back there may be one that reaches in.
  const reach = new Float64Array(owners * KIND_COUNT);
  let last = 0;
  for (let event = 0; event < events.count; event++) {
    const partner = events.partner[event];
    const kind = events.kind[event];
    let long = events.duration[event];
    if (kind === KIND.SENT && partner > 0) long = events.time[partner - 1] - events.time[event];
    last = Math.max(last, events.time[event] + events.duration[event]);
    if (long > reach[keys[event]]) reach[keys[event]] = long;
  }
  for (const process of processes) last = Math.max(last, process.ended || 0, process.began || 0);
  model.reachOf = (owner, kind) => reach[owner * KIND_COUNT + kind];

  model.messages = buildMessages(run);
  last = Math.max(last, model.messages.last);
  model.end = Math.max(last, 1);
  model.busy = busyStretch(run, last);
  model.notable = buildNotable(run);
  model.flights = buildFlights(run);
  model.packetsOf = buildPackets(run);
  model.accesses = buildAccesses(run);
  model.spanRows = buildSpanRows(run, model);
  return model;
}

// A field of an event as a number; 0 if it has none.
function numberOf(model, event, name) {
  const field = model.fieldOf[model.run.events.shape[event]].get(name);
  return field === undefined ? 0 : Number(field.values[model.run.events.row[event]]);
}

function hasField(model, event, name) {
  return model.fieldOf[model.run.events.shape[event]].has(name);
}

function fieldsOf(model, event) {
  const row = model.run.events.row[event];
  return model.run.shapes[model.run.events.shape[event]].map((field) => (
    { name: field.name, format: field.format, value: field.values[row] }));
}

// The shortest stretch of time that has nearly all packets: setting up and going down take longer than the traffic.
const BUSY_SHARE = 0.96;

function busyStretch(run, end) {
  const { events } = run;
  const sent = [];
  for (let event = 0; event < events.count; event++) if (events.kind[event] === KIND.SENT) sent.push(events.time[event]);
  const wanted = Math.max(1, Math.floor(sent.length * BUSY_SHARE));
  let best = [0, end];
  for (let first = 0; first + wanted <= sent.length; first++) {
    const last = sent[first + wanted - 1];
    if (last - sent[first] < best[1] - best[0]) best = [sent[first], last];
  }
  const margin = Math.max((best[1] - best[0]) * 0.04, 500);
  return { from: best[0] - margin, to: best[1] + margin };
}

// The first place of a list whose time is not before `time`.
function lowerBound(times, time, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (times[middle] < time) from = middle + 1; else to = middle;
  }
  return from;
}

const within = (list, from, to) => {
  const first = lowerBound(list.times, from, list.from, list.to);
  return [first, lowerBound(list.times, to, first, list.to)];
};

function stepTime(run, message, step) {
  const time = run.messages.times[step][message];
  return time > 0 ? time - 1 : -1;
}

// When a work request begins and ends, as far as that is known.
function messageSpan(run, message) {
  let begin = -1;
  let end = -1;
  for (let step = 0; step < 6; step++) {
    const time = stepTime(run, message, step);
    if (time < 0) continue;
    if (begin < 0 || time < begin) begin = time;
    if (time > end) end = time;
  }
  return [begin, end];
}

// From posting to the moment the program had the completion, or to the completion.
function latencyOf(run, message) {
  const posted = stepTime(run, message, STEP.POSTED);
  const polled = stepTime(run, message, STEP.POLLED);
  const done = polled >= 0 ? polled : stepTime(run, message, STEP.COMPLETED);
  return posted < 0 || done < posted ? -1 : done - posted;
}

function buildMessages(run) {
  const { messages, lanes } = run;
  const begins = new Float64Array(messages.count);
  const ends = new Float64Array(messages.count);
  const byLane = lanes.map(() => []);
  let last = 0;
  for (let message = 0; message < messages.count; message++) {
    const [begin, end] = messageSpan(run, message);
    begins[message] = begin;
    ends[message] = end;
    last = Math.max(last, end);
    if (begin >= 0 && byLane[messages.lane[message]]) byLane[messages.lane[message]].push(message);
  }
  const rows = new Uint8Array(messages.count);
  const ofLane = byLane.map((list) => {
    // Sends fill the rows; receives wait in rows of their own, posted long before they are used.
    const sends = list.filter((message) => messages.queue[message] === 0);
    const receives = list.filter((message) => messages.queue[message] === 1);
    const made = [sends, receives].map((some) => {
      some.sort((a, b) => begins[a] - begins[b]);
      const busy = [];
      let reach = 0;
      for (const message of some) {
        let row = busy.findIndex((until) => until <= begins[message]);
        if (row < 0) row = busy.length < MESSAGE_ROWS_MAX ? busy.length : busy.indexOf(Math.min(...busy));
        busy[row] = ends[message];
        rows[message] = row;
        reach = Math.max(reach, ends[message] - begins[message]);
      }
      return {
        order: Uint32Array.from(some),
        times: Float64Array.from(some, (message) => begins[message]),
        ends: Float64Array.from(some, (message) => ends[message]).sort(),
        from: 0,
        to: some.length,
        rows: busy.length,
        reach,
      };
    });
    return { sends: made[0], receives: made[1] };
  });
  return { begins, ends, rows, ofLane, last };
}

// What is marked also where single events are not drawn.
function buildNotable(run) {
  const { events } = run;
  const trouble = [];
  const flags = [];
  for (let event = 0; event < events.count; event++) {
    const kind = events.kind[event];
    if (kind === KIND.FINDING || kind === KIND.INJECTED || kind === KIND.ASYNC) flags.push(event);
    if ((events.flags[event] & TROUBLE_FLAGS) !== 0 || kind === KIND.DROPPED || kind === KIND.RETRY || kind === KIND.NAK
      || kind === KIND.FINDING) {
      // An arrival repeats what its packet says.
      if (kind !== KIND.RECEIVED) trouble.push(event);
    }
  }
  const list = (some) => ({
    order: Uint32Array.from(some),
    times: Float64Array.from(some, (event) => events.time[event]),
    from: 0,
    to: some.length,
  });
  const ofLane = run.lanes.map(() => []);
  for (const event of trouble) if (events.lane[event] > 0) ofLane[events.lane[event] - 1].push(event);
  const sent = ofLane.map((some) => some.filter((event) => events.kind[event] === KIND.SENT));
  return { trouble: list(trouble), flags: list(flags), ofLane: ofLane.map(list), sentByLane: sent.map(list) };
}

// How long packets of each lane take on average: what is lost is drawn as if it were as fast.
function buildFlights(run) {
  const { events, lanes } = run;
  const sums = new Float64Array(lanes.length);
  const counts = new Float64Array(lanes.length);
  for (let event = 0; event < events.count; event++) {
    if (events.kind[event] !== KIND.SENT || events.partner[event] === 0 || events.lane[event] === 0) continue;
    sums[events.lane[event] - 1] += Math.max(0, events.time[events.partner[event] - 1] - events.time[event]);
    counts[events.lane[event] - 1]++;
  }
  return Array.from(sums, (sum, lane) => (counts[lane] > 0 ? sum / counts[lane] : 1000));
}

// The events of each work request, in order of time.
function buildPackets(run) {
  const { events, messages } = run;
  const starts = new Uint32Array(messages.count + 2);
  for (let event = 0; event < events.count; event++) starts[events.message[event] + 1]++;
  for (let message = 0; message <= messages.count; message++) starts[message + 1] += starts[message];
  const fill = starts.slice();
  const order = new Uint32Array(events.count);
  for (let event = 0; event < events.count; event++) order[fill[events.message[event]]++] = event;
  return (message) => order.subarray(starts[message + 1], starts[message + 2]);
}

function buildAccesses(run) {
  const { accesses, events, regions } = run;
  const lists = regions.map(() => []);
  for (let access = 0; access < accesses.count; access++) {
    if (accesses.event[access] < events.count) lists[accesses.region[access]].push(access);
  }
  return lists.map((list) => ({
    order: Uint32Array.from(list),
    times: Float64Array.from(list, (access) => events.time[accesses.event[access]]),
    from: 0,
    to: list.length,
  }));
}

// Spans of one process lie in each other; the outer one is above.
function buildSpanRows(run, model) {
  const { events, processes } = run;
  const rows = new Map();
  processes.forEach((process, index) => {
    const list = model.processList(index, KIND.SPAN);
    const busy = [];
    for (let place = list.from; place < list.to; place++) {
      const event = list.order[place];
      let row = busy.findIndex((until) => until <= events.time[event]);
      if (row < 0) row = Math.min(busy.length, SPAN_ROWS_MAX - 1);
      busy[row] = events.time[event] + events.duration[event];
      rows.set(event, row);
    }
    rows.set(`count ${index}`, busy.length);
  });
  return rows;
}

// The process whose program or peer did something to memory.
function actorOf(run, event) {
  const partner = run.events.partner[event];
  const kind = run.events.kind[event];
  if (kind === KIND.RECEIVED && partner > 0) return run.events.process[partner - 1];
  if (kind === KIND.RECEIVED && run.events.lane[event] > 0) {
    const peer = run.lanes[run.events.lane[event] - 1].peer;
    if (peer !== null) return run.lanes[peer].process;
  }
  return run.events.process[event];
}

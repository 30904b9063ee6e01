// Where rows are: each process with what it called, each connection with both its queue pairs and the wire between them,
// each region as a strip. Nothing here depends on the time that is in view.

const SIZE = { ruler: 28, flags: 26, section: 34, strip: 15, message: 11, wire: 20, gap: 92, gapMax: 250, tightGap: 64, region: 40, space: 14 };

// With more connections than this rows are lower, so that several are seen at once.
const ROOMY_CONNECTIONS = 3;

function buildRows(model, options) {
  const { run } = model;
  const rows = [];
  let y = 6;
  const place = (row) => {
    row.y = y;
    y += row.height;
    rows.push(row);
    return row;
  };
  const shown = (process) => !options.hiddenProcesses.has(process);
  const section = (title, note) => place({ type: 'section', title, note, height: SIZE.section });

  const programs = run.processes.map((process, index) => programRow(model, index)).filter((row) => row && shown(row.process));
  if (programs.length > 0) {
    section('Programs', 'calls at no queue pair, spans of the application, the engine');
    for (const row of programs) { place(row); y += SIZE.space; }
  }

  const pairs = connections(run).filter((pair) => !options.hiddenLanes.has(pair[0]) && pair.some((lane) => shown(run.lanes[lane].process)));
  const busy = pairs.filter((pair) => pair.some((lane) => hasTraffic(model, lane)));
  const idle = pairs.filter((pair) => !busy.includes(pair)).flat();
  // Those whose ends were both recorded come first.
  busy.sort((a, b) => b.length - a.length);
  const tight = busy.length > ROOMY_CONNECTIONS;
  if (busy.length > 0) section('Queue pairs', 'work requests of each, and the packets between them');
  for (const pair of busy) {
    const collapsed = options.collapsed.has(pair[0]);
    const [a, b] = pair;
    if (collapsed) {
      place({ type: 'collapsed', lanes: pair, height: 40 });
      y += 6;
      continue;
    }
    const upper = laneRow(model, a, false, tight);
    const gap = b === undefined ? SIZE.tightGap * 0.6 : tight ? SIZE.tightGap : SIZE.gap;
    const lower = b === undefined ? null : laneRow(model, b, true, tight);
    place(upper);
    place({ type: 'gap', lanes: pair, height: gap });
    if (lower) place(lower);
    y += SIZE.space;
  }

  if (idle.length > 0) section(busy.length > 0 ? 'Idle queue pairs' : 'Queue pairs', 'neither packets nor work requests');
  for (const lane of idle) place(laneRow(model, lane, false, true));

  const regions = run.regions.map((region, index) => index)
    .filter((index) => model.accesses[index].to > 0 && shown(run.regions[index].process));
  if (regions.length > 0) {
    section('Memory regions', 'who wrote and read where, by the colour of the process');
    for (const region of regions.slice(0, options.regionsMax)) place({ type: 'region', region, height: SIZE.region });
    const rest = regions.length - options.regionsMax;
    if (rest > 0) place({ type: 'section', title: '', note: `and ${counted(rest, 'more region', 'more regions')}`, height: 24 });
  }
  // Room that is left goes to the wires: the flatter an arrow, the harder it is to follow.
  const gaps = rows.filter((row) => row.type === 'gap' && row.lanes.length === 2).length;
  const more = gaps === 0 ? 0 : Math.max(0, Math.min(SIZE.gapMax - SIZE.gap, Math.floor((options.room - y - 24) / gaps)));
  let shift = 0;
  for (const row of rows) {
    row.y += shift;
    if (row.type === 'gap' && row.lanes.length === 2) { row.height += more; shift += more; }
  }
  y += shift;
  const wires = new Map();
  for (const row of rows) {
    if (row.type === 'lane') wires.set(row.lane, row.y + row.wireY);
    if (row.type === 'collapsed') for (const lane of row.lanes) wires.set(lane, row.y + row.height / 2);
  }
  return { rows, wires, height: y + 24, tight };
}

// Queue pairs that are each other's peers belong together; others stand alone.
function connections(run) {
  const taken = new Set();
  const pairs = [];
  run.lanes.forEach((lane, index) => {
    if (taken.has(index)) return;
    taken.add(index);
    const peer = lane.peer;
    if (peer !== null && peer !== index && !taken.has(peer) && run.lanes[peer].peer === index) {
      taken.add(peer);
      pairs.push([index, peer]);
    } else {
      pairs.push([index]);
    }
  });
  return pairs;
}

function hasTraffic(model, lane) {
  const has = (kind) => { const list = model.laneList(lane, kind); return list.to > list.from; };
  const { sends, receives } = model.messages.ofLane[lane];
  return sends.to + receives.to > 0 || has(KIND.SENT) || has(KIND.RECEIVED);
}

function programRow(model, process) {
  const { run } = model;
  const has = (kind) => { const list = model.processList(process, kind); return list.to > list.from; };
  const spans = Math.min(model.spanRows.get(`count ${process}`) || 0, SPAN_ROWS_MAX);
  const marks = [KIND.STATE, KIND.DROPPED, KIND.ASYNC, KIND.FINDING, KIND.INJECTED, KIND.FLOW, KIND.OTHER, KIND.COMPLETION,
    KIND.POLL, KIND.RETRY, KIND.NAK, KIND.SENT, KIND.RECEIVED, KIND.ACCESS, KIND.POST].filter(has);
  const strips = [];
  let y = 4;
  const strip = (what, height, more) => { strips.push({ what, y, height, ...more }); y += height + 3; };
  for (let row = 0; row < spans; row++) strip('span', SIZE.strip + 3, { row });
  if (has(KIND.CALL)) strip('call', SIZE.strip);
  if (has(KIND.ENGINE)) strip('engine', 9);
  if (marks.length > 0) strip('marks', SIZE.strip, { kinds: marks });
  if (strips.length === 0) return null;
  return { type: 'program', process, strips, height: Math.max(y + 2, 38) };
}

// A lane's calls are farthest from the wire, its work requests between, states and completions at the wire.
function laneRow(model, lane, below, tight) {
  const { run } = model;
  const sends = model.messages.ofLane[lane].sends;
  const receives = model.messages.ofLane[lane].receives;
  const sendRows = Math.min(sends.rows, tight ? 4 : MESSAGE_ROWS_MAX);
  const receiveRows = receives.rows > 0 ? 1 : 0;
  const calls = model.laneList(lane, KIND.CALL);
  const engine = model.laneList(lane, KIND.ENGINE);
  const strips = [];
  if (calls.to > calls.from) strips.push({ what: 'call', height: SIZE.strip });
  if (engine.to > engine.from) strips.push({ what: 'engine', height: 8 });
  if (sendRows > 0) strips.push({ what: 'sends', lane, height: sendRows * (SIZE.message + 2), rows: sendRows });
  if (receiveRows > 0) strips.push({ what: 'receives', lane, height: SIZE.message + 2, rows: receiveRows });
  strips.push({ what: 'wire', height: SIZE.wire });
  if (below) strips.reverse();
  let y = 4;
  for (const strip of strips) {
    strip.y = y;
    y += strip.height + 4;
  }
  const wire = strips.find((strip) => strip.what === 'wire');
  return {
    type: 'lane', lane, process: run.lanes[lane].process, below, strips,
    wireY: below ? wire.y : wire.y + wire.height, height: Math.max(y, 44),
  };
}

// What stands beside the canvas: details, latencies, the table of events, filters, help. It is made of elements and texts;
// no text of a run is ever read as HTML.

const TABLE_ROWS = 100;
const EVENTS_OF_MESSAGE_MAX = 40;

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'onclick') made.addEventListener('click', value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

const SVG = 'http://www.w3.org/2000/svg';

function drawing(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const link = (text, note, onclick) => element('button', { type: 'button', class: 'link', onclick }, element('span', {}, text), element('span', {}, note));

function definitions(pairs, kind) {
  const list = element('dl', { class: kind });
  for (const [name, value] of pairs) {
    if (value === '' || value === null || value === undefined) continue;
    list.append(element('dt', {}, name), element('dd', {}, value));
  }
  return list;
}

// ---- details

function showInspector(app) {
  const { selected, inspector } = app;
  inspector.replaceChildren();
  inspector.scrollTop = 0;
  inspector.classList.toggle('idle', selected.event < 0 && selected.message < 0 && selected.region < 0 && selected.lane < 0);
  if (selected.event >= 0) showEvent(app, selected.event);
  else if (selected.message >= 0) showMessage(app, selected.message);
  else if (selected.region >= 0) showRegion(app, selected.region);
  else if (selected.lane >= 0) showLane(app, selected.lane);
  else showSummary(app);
}

function heading(app, kind, title, bad) {
  app.inspector.append(
    element('div', { class: bad ? 'kind bad' : 'kind' }, element('span', {}, kind),
      element('button', { type: 'button', title: 'Close (Esc)', 'aria-label': 'Close the details', onclick: () => app.select({}) }, '×')),
    element('h2', {}, title));
}

function part(app, title, ...children) {
  app.inspector.append(element('h3', {}, title), ...children);
}

function showEvent(app, event) {
  const { model, inspector } = app;
  const { run } = model;
  const { events } = run;
  const kind = events.kind[event];
  const lane = events.lane[event] - 1;
  const bad = (events.flags[event] & (FLAG.LOST | FLAG.NAK | FLAG.ERROR)) !== 0 || kind === KIND.DROPPED || kind === KIND.FINDING;
  heading(app, kindText(run, event), nameText(run, events.name[event]) || kindText(run, event), bad);
  const text = nameText(run, events.text[event]);
  if (text) inspector.append(element('p', { class: bad ? 'note' : '' }, text));

  const links = element('div', { class: 'links' });
  const message = events.message[event] - 1;
  if (message >= 0) {
    links.append(link(`Work request ${run.messages.wrId[message]}: ${messageTitle(run, message)}`, '', () => app.select({ message }, true)));
  }
  const partner = events.partner[event] - 1;
  if (partner >= 0) {
    const words = { [KIND.SENT]: 'Sent', [KIND.RECEIVED]: 'Arrived', [KIND.DROPPED]: 'Dropped' };
    const apart = events.time[partner] - events.time[event];
    links.append(link(`${words[events.kind[partner]] || kindText(run, partner)} at ${events.lane[partner] > 0 ? laneText(run, events.lane[partner] - 1) : processText(run, events.process[partner])}`,
      `${apart < 0 ? '−' : '+'}${duration(Math.abs(apart))}`, () => app.select({ event: partner }, true)));
  } else if (events.flags[event] & FLAG.LOST) {
    inspector.append(element('p', { class: 'note' }, 'It never arrived.'));
  }
  if (links.childElementCount > 0) part(app, 'Belongs to', links);
  inspector.append(element('div', { class: 'pair' },
    element('button', { type: 'button', title: 'The event before of this kind (,)', onclick: () => app.neighbour(-1) }, '← Before'),
    element('button', { type: 'button', title: 'The next event of this kind (.)', onclick: () => app.neighbour(1) }, 'After →')));

  part(app, 'When and where', definitions([
    ['Time', moment(events.time[event])],
    ['Time of day', timeOfDay(run, events.time[event])],
    ['Took', events.duration[event] > 0 ? duration(events.duration[event]) : ''],
    ['Queue pair', lane >= 0 ? `${laneText(run, lane)} ${nameText(run, run.lanes[lane].kind)}` : ''],
    ['Peer', lane >= 0 ? peerText(run, lane) : ''],
    ['Process', processText(run, events.process[event])],
  ]));
  const fields = fieldsOf(model, event);
  if (fields.length > 0) {
    const packet = kind === KIND.SENT || kind === KIND.RECEIVED || kind === KIND.DROPPED;
    part(app, packet ? 'Headers' : kind === KIND.CALL ? 'Arguments and result' : 'Fields',
      definitions(fields.map((field) => [plain(field.name), valueText(run, field)]), 'fields'));
  }
  if (message >= 0) showWaterfall(app, message);
}

function peerText(run, lane) {
  const { peer, peer_label: label } = run.lanes[lane];
  const known = peer !== null ? `${laneText(run, peer)} of ${processText(run, run.lanes[peer].process)}` : '';
  return known || nameText(run, label);
}

function showMessage(app, message) {
  const { model } = app;
  const { run } = model;
  const { messages } = run;
  const lane = messages.lane[message];
  const failed = isFailure(run, message);
  const receive = messages.queue[message] === 1;
  heading(app, receive ? 'Receive request' : 'Work request', messageTitle(run, message), failed);
  const status = nameText(run, messages.status[message]);
  part(app, 'What it is', definitions([
    ['wr_id', `${messages.wrId[message]} (${hex(messages.wrId[message])})`],
    ['Status', status || 'it never completed'],
    ['Queue pair', run.lanes[lane] ? `${laneText(run, lane)} of ${processText(run, run.lanes[lane].process)}` : ''],
    ['Peer', run.lanes[lane] ? peerText(run, lane) : ''],
  ]));
  showWaterfall(app, message);
  const partner = messages.partner[message] - 1;
  const list = element('div', { class: 'links' });
  if (partner >= 0) {
    list.append(link(`${receive ? 'Filled by' : 'Received by'} work request ${messages.wrId[partner]}`, messageTitle(run, partner),
      () => app.select({ message: partner }, true)));
  }
  const own = model.packetsOf(message);
  let begin = stepTime(run, message, STEP.POSTED);
  if (begin < 0) begin = model.messages.begins[message];
  for (const event of own.subarray(0, EVENTS_OF_MESSAGE_MAX)) {
    const psn = hasField(model, event, 'psn') ? ` PSN ${numberOf(model, event, 'psn')}` : '';
    const apart = run.events.time[event] - begin;
    list.append(link(`${kindText(run, event)}: ${nameText(run, run.events.name[event])}${psn}`, `${apart < 0 ? '−' : '+'}${duration(Math.abs(apart))}`,
      () => app.select({ event, message }, true)));
  }
  if (own.length > EVENTS_OF_MESSAGE_MAX) list.append(element('p', { class: 'muted' }, `and ${counted(own.length - EVENTS_OF_MESSAGE_MAX, 'more event', 'more events')}`));
  if (list.childElementCount > 0) part(app, `Its ${counted(own.length, 'event', 'events')}`, list);
}

// The steps of one message, each a bar from the step before.
function showWaterfall(app, message) {
  const { model } = app;
  const { run } = model;
  const [begin, end] = messageSpan(run, message);
  if (begin < 0) return;
  const colours = ['muted', 'post', 'wire', 'place', 'complete', 'poll'];
  const list = element('ol', { class: 'waterfall', 'aria-label': 'Steps of this message' });
  let before = -1;
  STEP_WORDS.forEach((word, step) => {
    const time = stepTime(run, message, step);
    const bar = element('span', { class: 'bar', 'aria-hidden': 'true' });
    let took = 'not seen';
    if (time >= 0) {
      const from = before < 0 ? time : Math.min(before, time);
      const part = document.createElement('i');
      part.style.left = `${(from - begin) / Math.max(end - begin, 1) * 100}%`;
      part.style.width = `${Math.max(0, time - from) / Math.max(end - begin, 1) * 100}%`;
      part.style.background = `var(--${colours[step]})`;
      bar.append(part);
      took = before < 0 ? duration(0) : `${time < before ? '−' : '+'}${duration(Math.abs(time - before))}`;
      before = time;
    }
    list.append(element('li', {}, element('span', { class: time < 0 ? 'unknown' : '' }, word), bar,
      element('span', { class: time < 0 ? 'took unknown' : 'took' }, took)));
  });
  part(app, `From posted to polled: ${duration(end - begin)}`, list);
  app.inspector.append(element('div', { class: 'pair' },
    element('button', { type: 'button', title: 'Show all of this message (z)', onclick: () => app.zoomToMessage(message) }, 'Show all of it')));
}

function showRegion(app, index) {
  const { model } = app;
  const { run } = model;
  const region = run.regions[index];
  heading(app, 'Memory region', `R_Key ${hex(region.rkey)}`, false);
  part(app, 'What it is', definitions([
    ['Process', processText(run, region.process)],
    ['Addresses', `${hex(region.address)} to ${hex(region.address + BigInt(Math.round(region.length)))}`],
    ['Length', `${sizeText(region.length)} (${grouped(region.length)} bytes)`],
    ['L_Key', hex(region.lkey)],
    ['R_Key', hex(region.rkey)],
    ['Rights', nameText(run, region.rights)],
    ['Registered', region.registered === null ? '' : moment(region.registered)],
    ['Deregistered', region.deregistered === null ? '' : moment(region.deregistered)],
  ]));
  const { accesses } = run;
  const list = model.accesses[index];
  const [first, end] = within(list, app.view.from, app.view.to);
  const links = element('div', { class: 'links' });
  for (let place = first; place < Math.min(end, first + EVENTS_OF_MESSAGE_MAX); place++) {
    const access = list.order[place];
    const event = accesses.event[access];
    links.append(link(`${accesses.write[access] ? 'Written' : 'Read'} by ${processText(run, actorOf(run, event))}`,
      `${hex(BigInt(Math.round(Number(accesses.offset[access]))))} + ${sizeText(Number(accesses.length[access]))}`, () => app.select({ event }, true)));
  }
  part(app, `${counted(end - first, 'access', 'accesses')} in view`, links);
}

function showLane(app, lane) {
  const { model } = app;
  const { run } = model;
  const known = run.lanes[lane];
  heading(app, 'Queue pair', `${laneText(run, lane)} ${nameText(run, known.kind)}`, false);
  part(app, 'What it is', definitions([
    ['Number', `${hex(known.qpn)} (${known.qpn})`],
    ['Process', processText(run, known.process)],
    ['Peer', peerText(run, lane)],
    ['Link', nameText(run, known.link)],
  ]));
  const links = element('div', { class: 'links' });
  const states = model.laneList(lane, KIND.STATE);
  for (let place = states.from; place < Math.min(states.to, states.from + EVENTS_OF_MESSAGE_MAX); place++) {
    const event = states.order[place];
    links.append(link(nameText(run, run.events.name[event]), moment(states.times[place]), () => app.select({ event }, true)));
  }
  if (links.childElementCount > 0) part(app, 'States', links);
  part(app, 'Counts', definitions([
    ...[KIND.CALL, KIND.SENT, KIND.RECEIVED, KIND.DROPPED, KIND.RETRY, KIND.COMPLETION].map((kind) => {
      const list = model.laneList(lane, kind);
      const words = KIND_WORDS[kind][1];
      return [words[0].toUpperCase() + words.slice(1), list.to > list.from ? grouped(list.to - list.from) : ''];
    }),
    ['Troubles', model.notable.ofLane[lane].to > 0 ? grouped(model.notable.ofLane[lane].to) : ''],
  ]));
}

// What a reader sees first: how much happened, and what was wrong.
function showSummary(app) {
  const { model, inspector } = app;
  const { run } = model;
  const { events } = run;
  if (!app.totals) app.totals = totalsOf(run);
  const totals = app.totals;
  inspector.append(element('h2', {}, events.count === 0 ? 'Nothing was recorded' : 'This run'));
  if (events.count === 0) {
    inspector.append(element('p', { class: 'muted' }, 'The recording holds no event: the program made no call of verbs, or ended before the first.'));
    return;
  }
  const figure = (number, word, bad) => element('div', { class: bad && number > 0 ? 'bad' : '' }, element('b', {}, grouped(number)), element('span', {}, word));
  inspector.append(element('p', { class: 'muted' }, `${duration(model.end)}, ${counted(run.processes.length, 'process', 'processes')}, ${counted(run.lanes.length, 'queue pair', 'queue pairs')}`),
    element('div', { class: 'figures' },
      figure(run.messages.count, 'work requests'), figure(totals.sent, 'packets or trains'),
      figure(totals.lost, 'packets never arrived', true), figure(totals.dropped, 'packets dropped', true),
      figure(totals.again, 'sent again', true), figure(totals.naks, 'refused', true), figure(totals.errors, 'completed with an error', true)));
  const flags = model.notable.flags;
  const notable = element('div', { class: 'links' });
  // Each name once, findings first.
  const names = new Map();
  for (let place = flags.from; place < flags.to; place++) {
    const event = flags.order[place];
    const key = `${events.kind[event]} ${events.name[event]}`;
    if (!names.has(key)) names.set(key, { event, count: 0 });
    names.get(key).count++;
  }
  const rank = ({ event }) => [KIND.FINDING, KIND.INJECTED, KIND.ASYNC].indexOf(events.kind[event]);
  for (const { event, count } of [...names.values()].sort((a, b) => rank(a) - rank(b)).slice(0, 14)) {
    const kind = kindText(run, event).toLowerCase();
    notable.append(link(nameText(run, events.name[event]) || kind, count > 1 ? `${kind}, ${grouped(count)} times` : kind, () => app.select({ event }, true)));
  }
  if (notable.childElementCount > 0) part(app, 'Findings, failures and asynchronous events', notable);
  const troubles = model.notable.trouble;
  if (troubles.to > 0) {
    part(app, `What went wrong: ${counted(troubles.to, 'event', 'events')}`, element('div', { class: 'links' },
      ...Array.from(troubles.order.subarray(0, 6), (event) => link(`${kindText(run, event)} ${shortName(nameText(run, events.name[event]))}`,
        moment(events.time[event]), () => app.select({ event }, true)))));
    inspector.append(element('p', { class: 'muted' }, 'e goes to the next, E to the one before.'));
  } else {
    inspector.append(element('p', { class: 'muted' }, 'Nothing was lost, refused or sent again.'));
  }
  part(app, 'Processes', definitions(run.processes.slice(0, 24).map((process) => [
    `${nameText(run, process.name) || 'process'} ${process.pid}`, nameText(run, process.outcome) || 'running at the end'])));
  if (run.clock) part(app, 'Clocks', element('p', {}, plain(run.clock)), run.clockError ? element('p', { class: 'muted' }, `They may differ by up to ${duration(run.clockError)}.`) : null);
}

function totalsOf(run) {
  const { events } = run;
  const totals = { sent: 0, lost: 0, dropped: 0, again: 0, errors: 0, naks: 0 };
  for (let event = 0; event < events.count; event++) {
    const kind = events.kind[event];
    const flags = events.flags[event];
    if (kind === KIND.SENT) {
      totals.sent++;
      if (flags & FLAG.LOST) totals.lost++;
      if (flags & FLAG.AGAIN) totals.again++;
      if (flags & FLAG.NAK) totals.naks++;
    }
    if (kind === KIND.DROPPED) totals.dropped++;
    if (kind === KIND.COMPLETION && flags & FLAG.ERROR) totals.errors++;
  }
  return totals;
}

// ---- latencies

const QUANTILES = [['least', 0], ['median', 0.5], ['99 %', 0.99], ['most', 1]];
const BINS_PER_DOUBLING = 8;

// Latencies of what was posted in view, by operation and power of two of the size.
function latencyGroups(app) {
  const { run } = app.model;
  const { messages } = run;
  const groups = new Map();
  for (let message = 0; message < messages.count; message++) {
    if (messages.queue[message] === 1 || isFailure(run, message)) continue;
    const posted = stepTime(run, message, STEP.POSTED);
    const latency = latencyOf(run, message);
    if (latency < 0 || posted < app.view.from || posted > app.view.to) continue;
    const bytes = Number(messages.bytes[message]);
    const size = bytes === 0 ? -1 : Math.floor(Math.log2(bytes));
    const key = `${messages.opcode[message]} ${size}`;
    if (!groups.has(key)) groups.set(key, { opcode: messages.opcode[message], size, latencies: [], of: [], least: bytes, most: bytes });
    const group = groups.get(key);
    group.latencies.push(latency);
    group.of.push(message);
    group.least = Math.min(group.least, bytes);
    group.most = Math.max(group.most, bytes);
  }
  return [...groups.values()].sort((a, b) => a.opcode - b.opcode || a.size - b.size);
}

function showLatency(app) {
  const place = app.views.latency;
  const { run } = app.model;
  place.replaceChildren();
  const groups = latencyGroups(app);
  if (groups.length === 0) {
    place.append(element('div', { class: 'empty' }, element('h2', {}, 'No latencies here'),
      element('p', {}, 'No work request was posted and completed within the time in view. Zoom out, or press Home for the whole run.')));
    return;
  }
  const count = groups.reduce((sum, group) => sum + group.latencies.length, 0);
  place.append(element('h2', {}, 'Latency by operation and size'),
    element('p', { class: 'muted' }, `${counted(count, 'work request', 'work requests')} posted in view, from posting to the moment the program had the completion. The scale is logarithmic.`));
  const grid = element('div', { class: 'histograms' });
  for (const group of groups) {
    const sorted = Float64Array.from(group.latencies).sort();
    const name = nameText(run, group.opcode) || 'work';
    const sizes = group.least === group.most ? sizeText(group.least) : `${sizeText(group.least)} to ${sizeText(group.most)}`;
    const quantile = (share) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
    grid.append(element('div', { class: 'histogram' },
      element('h3', {}, `${name}, ${sizes}`, element('span', {}, counted(sorted.length, 'request', 'requests'))),
      ...histogram(sorted, `${name}, ${sizes}: median ${duration(quantile(0.5))}, 99 % ${duration(quantile(0.99))}`),
      element('table', {}, element('thead', {}, element('tr', {}, ...QUANTILES.map(([word]) => element('th', { scope: 'col' }, word)))),
        element('tbody', {}, element('tr', {}, ...QUANTILES.map(([, share]) => element('td', { class: 'number' }, duration(quantile(share)))))))));
  }
  place.append(grid);
  const slowest = groups.flatMap((group) => group.of).sort((a, b) => latencyOf(run, b) - latencyOf(run, a)).slice(0, 12);
  place.append(element('div', { class: 'slowest' }, element('h2', {}, 'The slowest'),
    element('div', { class: 'links' }, ...slowest.map((message) => link(
      `${messageTitle(run, message)}, wr_id ${run.messages.wrId[message]}, ${laneText(run, run.messages.lane[message])}`, duration(latencyOf(run, message)), () => {
        app.show('timeline');
        app.zoomToMessage(message);
        app.select({ message }, false);
      })))));
}

function histogram(sorted, label) {
  const low = Math.floor(Math.log2(Math.max(sorted[0], 1)) * BINS_PER_DOUBLING);
  const high = Math.max(Math.floor(Math.log2(Math.max(sorted[sorted.length - 1], 1)) * BINS_PER_DOUBLING), low + 15);
  const bins = new Float64Array(high - low + 1);
  for (const latency of sorted) bins[Math.floor(Math.log2(Math.max(latency, 1)) * BINS_PER_DOUBLING) - low]++;
  const most = Math.max(...bins);
  const [width, base] = [320, 80];
  const wide = width / bins.length;
  const svg = drawing('svg', { viewBox: `0 0 ${width} ${base}`, role: 'img', 'aria-label': label, preserveAspectRatio: 'none' });
  svg.append(drawing('title', {}, label));
  bins.forEach((count, bin) => {
    if (count === 0) return;
    const tall = Math.max(2, count / most * (base - 3));
    svg.append(drawing('rect', { x: bin * wide + 0.5, y: base - 1 - tall, width: Math.max(1, wide - 1), height: tall, fill: 'var(--wire)' },
      drawing('title', {}, `${duration(2 ** ((bin + low) / BINS_PER_DOUBLING))} to ${duration(2 ** ((bin + low + 1) / BINS_PER_DOUBLING))}: ${grouped(count)}`)));
  });
  svg.append(drawing('rect', { x: 0, y: base - 1, width, height: 1, fill: 'var(--strong-line)' }));
  const end = (bin) => element('span', {}, duration(2 ** (bin / BINS_PER_DOUBLING)));
  return [svg, element('div', { class: 'ends', 'aria-hidden': 'true' }, end(low), end(high + 1))];
}

// ---- table

// The events that are in view and not filtered, in order of time.
function eventsInView(app) {
  const { events } = app.model.run;
  const first = lowerBound(events.time, app.view.from, 0, events.count);
  const end = upperBound(events.time, app.view.to, first, events.count);
  return { first, end };
}

function upperBound(times, time, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (times[middle] <= time) from = middle + 1; else to = middle;
  }
  return from;
}

function eventShown(app, event) {
  const { events } = app.model.run;
  return kindShown(app, events.kind[event]) && !app.options.hiddenProcesses.has(events.process[event])
    && !(app.hiddenPartners && events.lane[event] > 0 && app.hiddenPartners.has(events.lane[event] - 1));
}

function showEvents(app) {
  const place = app.views.events;
  const { run } = app.model;
  const { first, end } = eventsInView(app);
  // Making the same table again would take the focus from its row.
  const shown = [first, end, app.table.offset, app.selected.event, ...app.options.hiddenKinds, '|', ...app.options.hiddenProcesses, '|', ...app.options.hiddenLanes].join();
  if (app.table.shown === shown) return;
  app.table.shown = shown;
  const focused = [...place.querySelectorAll('tbody tr')].indexOf(document.activeElement);
  const page = [];
  let seen = 0;
  let total = 0;
  for (let event = first; event < end; event++) {
    if (!eventShown(app, event)) continue;
    if (total >= app.table.offset && page.length < TABLE_ROWS) page.push(event);
    total++;
  }
  seen = Math.min(app.table.offset + page.length, total);
  if (total > 0 && page.length === 0) { app.table.offset = 0; showEvents(app); return; }
  place.replaceChildren();
  if (total === 0) {
    place.append(element('div', { class: 'empty' }, element('h2', {}, 'No events here'),
      element('p', {}, 'The time in view holds none that the filter shows. Press Home for the whole run.')));
    return;
  }
  const body = element('tbody');
  page.forEach((event, index) => body.append(eventRow(app, event, app.table.offset + index + 2)));
  const table = element('table', { class: 'events', 'aria-rowcount': total + 1 },
    element('caption', {}, `Events ${grouped(app.table.offset + 1)} to ${grouped(seen)} of the ${grouped(total)} between ${moment(app.view.from)} and ${moment(app.view.to)}. `
      + 'Arrow keys move, Enter shows details, g goes to the timeline.'),
    element('thead', {}, element('tr', { 'aria-rowindex': 1 }, ...['Time', 'Process', 'QP', 'Kind', 'What', 'PSN', 'wr_id'].map((word) => element('th', { scope: 'col' }, word)))),
    body);
  const turn = (by) => { app.table.offset = Math.max(0, app.table.offset + by); showEvents(app); focusRow(place, 0); };
  place.append(element('h2', {}, 'Events in view'), table, element('div', { class: 'pages' },
    element('button', { type: 'button', disabled: app.table.offset === 0, onclick: () => turn(-TABLE_ROWS) }, '← Earlier'),
    element('button', { type: 'button', disabled: seen >= total, onclick: () => turn(TABLE_ROWS) }, 'Later →')));
  if (focused >= 0) focusRow(place, Math.min(focused, page.length - 1));
  body.addEventListener('keydown', (key) => {
    const rows = [...body.children];
    const at = rows.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[key.key];
    if (to === rows.length && seen < total) turn(TABLE_ROWS);
    else if (to !== undefined && rows[to]) focusRow(place, to);
    else if (key.key === 'Enter' && at >= 0) rows[at].click();
    else return;
    key.preventDefault();
    key.stopPropagation();
  });
}

function focusRow(place, index) {
  const rows = place.querySelectorAll('tbody tr');
  rows.forEach((row) => { row.tabIndex = -1; });
  if (rows[index]) { rows[index].tabIndex = 0; rows[index].focus(); }
}

function eventRow(app, event, index) {
  const { model } = app;
  const { run } = model;
  const { events } = run;
  const message = events.message[event] - 1;
  const bad = (events.flags[event] & (FLAG.LOST | FLAG.NAK | FLAG.ERROR)) !== 0 || events.kind[event] === KIND.DROPPED;
  const name = nameText(run, events.name[event]);
  const text = nameText(run, events.text[event]);
  const cells = [
    moment(events.time[event]), processText(run, events.process[event]),
    events.lane[event] > 0 ? hex(run.lanes[events.lane[event] - 1].qpn) : '', kindText(run, event),
    [name, text].filter(Boolean).join(': '), hasField(model, event, 'psn') ? String(numberOf(model, event, 'psn')) : '',
    message >= 0 ? String(run.messages.wrId[message]) : '',
  ];
  return element('tr', {
    tabindex: index === app.table.offset + 2 ? 0 : -1, 'aria-rowindex': index, 'aria-selected': app.selected.event === event ? 'true' : 'false',
    onclick: () => app.select({ event }, true),
  }, ...cells.map((cell, column) => element('td', { class: column === 3 && bad ? 'bad' : [2, 5, 6].includes(column) ? 'tight' : '' }, cell)));
}

// ---- filters, notes, legend, help

function showFilters(app) {
  const { model, options } = app;
  const { run } = model;
  const counts = new Uint32Array(KIND_COUNT);
  for (let event = 0; event < run.events.count; event++) counts[run.events.kind[event]]++;
  const choice = (text, checked, change) => {
    const box = element('input', { type: 'checkbox' });
    box.checked = checked;
    box.addEventListener('change', () => { change(box.checked); app.filtered(); });
    return element('label', {}, box, element('span', {}, text));
  };
  const toggle = (set, key) => (on) => { if (on) set.delete(key); else set.add(key); };
  const kinds = element('fieldset', {}, element('legend', {}, 'Kinds'));
  KIND_WORDS.forEach(([, many], kind) => {
    if (counts[kind] > 0) kinds.append(choice(`${many} (${grouped(counts[kind])})`, !options.hiddenKinds.has(kind), toggle(options.hiddenKinds, kind)));
  });
  const processes = element('fieldset', {}, element('legend', {}, 'Processes'));
  run.processes.slice(0, 64).forEach((process, index) => {
    processes.append(choice(processText(run, index), !options.hiddenProcesses.has(index), toggle(options.hiddenProcesses, index)));
  });
  const pairs = element('fieldset', {}, element('legend', {}, 'Queue pairs'));
  connections(run).slice(0, 64).forEach((pair) => {
    pairs.append(choice(pair.map((lane) => hex(run.lanes[lane].qpn)).join(' ⇄ '), !options.hiddenLanes.has(pair[0]), (on) => {
      toggle(options.hiddenLanes, pair[0])(on);
      app.hiddenPartners = new Set(connections(run).filter((some) => options.hiddenLanes.has(some[0])).flat());
    }));
  });
  document.getElementById('filters').replaceChildren(kinds, processes, run.lanes.length > 2 ? pairs : '');
}

function showNotes(run) {
  const notes = document.getElementById('notes');
  notes.replaceChildren(...run.notes.map((note) => element('p', {}, plain(note))));
  notes.hidden = run.notes.length === 0;
}

function showLegend() {
  const line = (colour, dash, end) => drawing('svg', { viewBox: '0 0 22 12', 'aria-hidden': 'true' },
    drawing('path', { d: 'M1 6H15', stroke: `var(--${colour})`, 'stroke-width': 1.8, 'stroke-dasharray': dash, fill: 'none' }),
    drawing('path', { d: end, stroke: `var(--${colour})`, fill: end.endsWith('Z') ? `var(--${colour})` : 'none', 'stroke-width': 1.8 }));
  const head = 'M20 6L14 3.4V8.6Z';
  const mark = (colour, d, filled) => drawing('svg', { viewBox: '0 0 22 12', 'aria-hidden': 'true' },
    drawing('path', { d, stroke: `var(--${colour})`, fill: filled ? `var(--${colour})` : 'none', 'stroke-width': 1.5 }));
  const steps = drawing('svg', { viewBox: '0 0 34 12', class: 'steps', 'aria-hidden': 'true' },
    ...['post', 'wire', 'place', 'poll'].map((colour, step) => drawing('rect', { x: step * 8.5, y: 2, width: 8.5, height: 8, fill: `var(--${colour})` })));
  const entries = [
    [steps, 'work request'],
    [line('request', '', head), 'request'], [line('answer', '', head), 'answer'], [line('again', '5 3', head), 'sent again'],
    [line('lost', '', 'M13 2.5L20 9.5M20 2.5L13 9.5'), 'lost'], [line('nak', '', 'M14 3H20V9H14Z'), 'NAK'],
    [mark('lost', 'M8.5 3.5L13.5 8.5M13.5 3.5L8.5 8.5M11 1A5 5 0 1 0 11.01 1', false), 'dropped'],
    [mark('again', 'M14.5 8.5A4.2 4.2 0 1 1 14.5 3.5M14.5 1V3.8H11.8', false), 'going back'],
    [mark('complete', 'M11 3A3 3 0 1 0 11.01 3Z', true), 'completion'], [mark('complete', 'M11 3A3 3 0 1 0 11.01 3Z', false), 'poll'],
    [mark('lost', 'M11 1L16 6L11 11L6 6Z', true), 'error'], [mark('injected', 'M11 1L17 11H5Z', true), 'injected'], [mark('lost', 'M11 1L17 11H5Z', true), 'finding'],
  ];
  document.getElementById('legend').replaceChildren(...entries.map(([icon, word]) => element('li', {}, icon, word)));
}

const KEYS = [
  ['Move and zoom', [['← →', 'move'], ['+ −  or  w s', 'zoom'], ['Home', 'the whole run'], ['b', 'where most packets are'], ['drag', 'move'], ['Ctrl + wheel', 'zoom at the pointer'],
    ['Shift + drag', 'zoom to a stretch of time'], ['↑ ↓', 'choose a row'], ['c', 'fold or open the connection']]],
  ['Follow', [['click', 'details of what is drawn'], ['. ,', 'next, previous event of that kind'], ['m', 'its work request'], ['o', 'its other end'],
    ['z', 'all of its message'], ['e E', 'next, previous trouble'], ['Esc', 'close the details']]],
  ['Find', [['/', 'search'], ['n N', 'next, previous match'], ['f', 'filter'], ['t', 'table of events'], ['l', 'latencies'], ['g', 'timeline'], ['?', 'this help']]],
  ['Search for', [['wr_id:7', 'a work request'], ['qp:0x11', 'a queue pair'], ['psn:100', 'a sequence number, also inside of trains'], ['key:0x81', 'an L_Key or R_Key'],
    ['status:err', 'a status'], ['kind:dropped', 'a kind'], ['retry', 'any text'], ['7', 'any of these numbers']]],
];

function showHelp(dialog) {
  if (dialog.childElementCount === 0) {
    const columns = KEYS.map(([title, keys]) => {
      const list = element('dl');
      for (const [key, what] of keys) list.append(element('dt', {}, element('kbd', {}, key)), element('dd', {}, what));
      return element('div', {}, element('h3', {}, title), list);
    });
    dialog.append(element('h2', { id: 'help-title' }, 'Keys'), element('div', { class: 'columns' }, ...columns),
      element('p', { class: 'muted' }, 'A work request is a bar with four parts: until its first packet was sent, until the last arrived, until it completed, until the program polled. '
        + 'From afar, packets become areas of bytes, and work requests the number under way. Several words of a search must all fit. The table (t) says in words what the timeline draws.'),
      element('button', { type: 'button', onclick: () => dialog.close() }, 'Close'));
  }
  dialog.showModal();
}

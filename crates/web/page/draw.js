// The canvas. Each frame draws what is in view and nothing else: single bars and arrows while they fit, sums of a few
// pixels each when they do not. What went wrong is always drawn singly, as far as the eye can tell it apart.

const TAU = Math.PI * 2;
const TOP = SIZE.ruler + SIZE.flags;
const FONT = (size, weight) => `${weight || 400} ${size}px system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif`;
// A strip with more bars than this is drawn as sums, and so is a wire with more packets for each pixel than that.
const BARS_MAX = 1500;
const ARROWS_PER_PIXEL = 0.45;
// With more losses than that, they are sums, too.
const TROUBLE_PER_PIXEL = 0.3;
// A flag that finds its place taken stands so many pixels further at most.
const FLAG_SHIFT_MAX = 260;
const HIT_DISTANCE = 6;

const COLOURS = ['paper', 'panel', 'raised', 'line', 'grid', 'strong-line', 'ink', 'muted', 'faint', 'accent', 'accent-soft', 'request',
  'answer', 'again', 'lost', 'nak', 'good', 'control', 'call', 'call-ink', 'post', 'wire', 'place', 'complete', 'poll', 'receive', 'span',
  'engine', 'state-ready', 'state-up', 'state-error', 'injected', 'mark', 'hit', 'p0', 'p1', 'p2', 'p3', 'p4', 'p5', 'p6', 'p7'];

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(COLOURS.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

const processColour = (theme, process) => theme[`p${process % 8}`];

function drawTimeline(app) {
  const g = app.context;
  const { width, height } = app.box;
  const { theme, layout, view } = app;
  app.shapes = [];
  app.peaks = new Map();
  app.underWay = new Map();
  app.drawn = { arrows: 0, bars: 0, marks: 0, sums: 0, labels: [] };
  const scale = (width - app.gutter) / (view.to - view.from);
  app.x = (time) => app.gutter + (time - view.from) * scale;
  app.scale = scale;
  g.setTransform(app.ratio, 0, 0, app.ratio, 0, 0);
  g.fillStyle = theme.paper;
  g.fillRect(0, 0, width, height);
  g.textBaseline = 'middle';

  const top = app.scroll - TOP;
  const visible = layout.rows.filter((row) => row.y + row.height > app.scroll && row.y < app.scroll + height - TOP);
  g.save();
  g.beginPath();
  g.rect(app.gutter, TOP, width - app.gutter, height - TOP);
  g.clip();
  const ticks = drawGrid(app, g);
  for (const row of visible) {
    const y = row.y - top;
    if (row.type === 'program') drawProgram(app, g, row, y);
    if (row.type === 'lane') drawLane(app, g, row, y);
    if (row.type === 'region') drawRegion(app, g, row, y);
    if (row.type === 'collapsed') drawCollapsed(app, g, row, y);
  }
  drawWires(app, g, visible, top);
  drawSelection(app, g);
  drawFlagLines(app, g);
  g.restore();

  drawGutter(app, g, visible, top);
  drawRuler(app, g, ticks);
  drawFlags(app, g);
  drawPointer(app, g);
}

// ---- axis

function tickStep(span, wanted) {
  const raw = span / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const times = raw / power;
  return Math.max(1, (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10) * power);
}

function drawGrid(app, g) {
  const { view, theme } = app;
  const step = tickStep(view.to - view.from, Math.max(2, (app.box.width - app.gutter) / 120));
  const ticks = [];
  for (let tick = Math.ceil(view.from / step) * step; tick <= view.to && ticks.length < 200; tick += step) ticks.push(tick);
  g.fillStyle = theme.grid;
  for (const tick of ticks) g.fillRect(Math.round(app.x(tick)), TOP, 1, app.box.height);
  return { ticks, step };
}

function tickText(tick, step) {
  const [unit, name] = step >= 1e8 ? [1e9, 's'] : step >= 1e5 ? [1e6, 'ms'] : step >= 100 ? [1e3, 'µs'] : [1, 'ns'];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const [whole, rest] = (tick / unit).toFixed(Math.min(digits, 3)).split('.');
  return `${grouped(whole)}${rest ? `.${rest}` : ''} ${name}`;
}

function drawRuler(app, g, { ticks, step }) {
  const { theme, box } = app;
  g.fillStyle = theme.paper;
  g.fillRect(0, 0, box.width, SIZE.ruler);
  g.font = FONT(11.5);
  g.fillStyle = theme.muted;
  g.textAlign = 'left';
  for (const tick of ticks) {
    const x = Math.round(app.x(tick));
    if (x < app.gutter) continue;
    g.fillRect(x, SIZE.ruler - 7, 1, 7);
    const text = tickText(tick, step);
    if (x + 5 + g.measureText(text).width < box.width) g.fillText(text, x + 5, SIZE.ruler - 11);
  }
  g.fillStyle = theme.paper;
  g.fillRect(0, 0, app.gutter, TOP);
  g.fillStyle = theme.muted;
  g.fillText(`${duration(app.view.to - app.view.from)} in view`, 18, SIZE.ruler - 11);
  g.fillStyle = theme.line;
  g.fillRect(0, TOP - 1, box.width, 1);
}

// ---- texts

// As much of a text as fits.
function fitText(g, text, width) {
  if (width < 12) return '';
  if (g.measureText(text).width <= width) return text;
  let low = 0;
  let high = text.length;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (g.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle; else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}…` : '';
}

function haloText(app, g, text, x, y, colour) {
  g.lineWidth = 3.5;
  g.lineJoin = 'round';
  g.strokeStyle = app.theme.paper;
  g.strokeText(text, x, y);
  g.fillStyle = colour;
  g.fillText(text, x, y);
}

function hit(app, x0, y0, x1, y1, what) {
  app.shapes.push({ x0, y0, x1, y1, ...what });
}

// ---- bars

const kindShown = (app, kind) => !app.options.hiddenKinds.has(kind);

// Bars of one strip, from a list in order of time.
function drawBars(app, g, owner, kind, y, height, colour, inkColour, keep) {
  if (!kindShown(app, kind)) return;
  const { model, view, theme } = app;
  const { events } = model.run;
  const list = model.list(owner, kind);
  if (list.from === list.to) return;
  const [first, end] = within(list, view.from - model.reachOf(owner, kind), view.to);
  if (end - first > BARS_MAX) {
    drawSums(app, g, list, y, height, colour);
    return;
  }
  g.font = FONT(10.5);
  g.textAlign = 'left';
  let lastX = -Infinity;
  for (let place = first; place < end; place++) {
    const event = list.order[place];
    if (keep && !keep(event)) continue;
    const x0 = app.x(events.time[event]);
    const x1 = app.x(events.time[event] + events.duration[event]);
    if (x1 < app.gutter) continue;
    const left = Math.max(x0, app.gutter - 2);
    const wide = Math.max(1.5, Math.min(x1, app.box.width + 2) - left);
    if (left + wide < lastX + 0.7 && !(events.flags[event] & FLAG.ERROR)) continue;
    lastX = left + wide;
    const failed = events.flags[event] & FLAG.ERROR;
    g.fillStyle = failed ? theme['state-error'] : colour;
    if (wide < 5) {
      g.fillRect(left, y, wide, height);
    } else {
      g.beginPath();
      g.roundRect(left, y, wide, height, 3);
      g.fill();
    }
    app.drawn.bars++;
    if (wide > 26) {
      g.fillStyle = failed ? theme.ink : inkColour;
      g.fillText(fitText(g, nameText(model.run, events.name[event]), wide - 8), left + 5, y + height / 2 + 0.5);
    }
    hit(app, left - 1, y, left + wide + 1, y + height, { event });
  }
}

// How much happened in each pair of pixels.
function drawSums(app, g, list, y, height, colour) {
  const { view, box } = app;
  const step = 2;
  const columns = Math.ceil((box.width - app.gutter) / step);
  const perColumn = (view.to - view.from) / (box.width - app.gutter) * step;
  const counts = new Float64Array(columns);
  let most = 0;
  let place = lowerBound(list.times, view.from, list.from, list.to);
  for (let column = 0; column < columns && place < list.to; column++) {
    const next = lowerBound(list.times, view.from + (column + 1) * perColumn, place, list.to);
    counts[column] = next - place;
    most = Math.max(most, counts[column]);
    place = next;
  }
  g.fillStyle = colour;
  for (let column = 0; column < columns; column++) {
    if (counts[column] === 0) continue;
    g.globalAlpha = 0.35 + 0.65 * counts[column] / most;
    g.fillRect(app.gutter + column * step, y, step, height);
  }
  g.globalAlpha = 1;
  app.drawn.sums++;
}

function drawProgram(app, g, row, y) {
  const { model, theme } = app;
  const owner = model.run.lanes.length + row.process;
  for (const strip of row.strips) {
    const at = y + strip.y;
    if (strip.what === 'span') {
      drawBars(app, g, owner, KIND.SPAN, at, strip.height, theme.span, theme.ink, (event) => model.spanRows.get(event) === strip.row);
    }
    if (strip.what === 'call') drawBars(app, g, owner, KIND.CALL, at, strip.height, theme.call, theme['call-ink']);
    if (strip.what === 'engine') drawBars(app, g, owner, KIND.ENGINE, at, strip.height, theme.engine, theme['call-ink']);
    if (strip.what === 'marks') drawMarks(app, g, owner, strip.kinds, at + strip.height / 2, strip.height);
  }
}

// ---- lanes

function drawLane(app, g, row, y) {
  const { theme } = app;
  for (const strip of row.strips) {
    const at = y + strip.y;
    if (strip.what === 'call') drawBars(app, g, row.lane, KIND.CALL, at, strip.height, theme.call, theme['call-ink']);
    if (strip.what === 'engine') drawBars(app, g, row.lane, KIND.ENGINE, at, strip.height, theme.engine, theme['call-ink']);
    if (strip.what === 'sends') drawMessages(app, g, app.model.messages.ofLane[row.lane].sends, at, strip, false);
    if (strip.what === 'receives') drawMessages(app, g, app.model.messages.ofLane[row.lane].receives, at, strip, true);
    if (strip.what === 'wire') {
      drawStates(app, g, row.lane, row.below ? at : at + strip.height - 4, row.below ? at + 13 : at + 7, row.below);
      drawMarks(app, g, row.lane, [KIND.POST, KIND.FLOW, KIND.OTHER, KIND.ACCESS, KIND.POLL, KIND.COMPLETION, KIND.STATE, KIND.ASYNC, KIND.RETRY,
        KIND.DROPPED, KIND.NAK, KIND.INJECTED, KIND.FINDING], row.below ? at + 13 : at + 7, 12);
    }
  }
}

function stateColour(theme, name) {
  const to = name.split(/→|->/).pop().trim().toUpperCase();
  if (to === 'RTS' || to === 'RTR') return theme['state-ready'];
  if (to.startsWith('ERR') || to.startsWith('SQE')) return theme['state-error'];
  return theme['state-up'];
}

// The state as a band along the wire.
function drawStates(app, g, lane, y) {
  const { model, theme, view } = app;
  const { events } = model.run;
  const list = model.laneList(lane, KIND.STATE);
  let place = Math.max(list.from, lowerBound(list.times, view.from, list.from, list.to) - 1);
  let x = app.gutter;
  g.fillStyle = theme['state-up'];
  if (place >= list.to || list.times[place] > view.from) {
    const until = place < list.to ? Math.min(app.x(list.times[place]), app.box.width) : app.box.width;
    g.fillRect(x, y, Math.max(0, until - x), 4);
  }
  for (let drawn = 0; place < list.to && list.times[place] <= view.to && drawn < BARS_MAX; place++, drawn++) {
    const from = Math.max(app.gutter, app.x(list.times[place]));
    const to = place + 1 < list.to ? Math.min(app.x(list.times[place + 1]), app.box.width) : app.box.width;
    g.fillStyle = stateColour(theme, nameText(model.run, events.name[list.order[place]]));
    g.fillRect(from, y, Math.max(0.5, to - from), 4);
  }
}

// Work requests: a bar each with its steps, or how many were under way.
function drawMessages(app, g, list, y, strip, receives) {
  const { model, view, theme } = app;
  const { messages } = model.run;
  const [first, end] = within(list, view.from - list.reach, view.to);
  const height = SIZE.message;
  if (end - first > (app.box.width - app.gutter) * strip.rows / 5 || overlapping(app, list, first, end, strip)) {
    drawOutstanding(app, g, list, y, strip, receives ? theme.receive : theme.wire);
    const chosen = app.selected.message;
    if (chosen >= 0 && messages.lane[chosen] === strip.lane && (messages.queue[chosen] === 1) === receives) {
      const [x0, x1] = [app.x(model.messages.begins[chosen]), app.x(model.messages.ends[chosen])];
      g.fillStyle = theme.accent;
      g.fillRect(x0, y + strip.height - 5, Math.max(2, x1 - x0), 4);
    }
    return;
  }
  g.font = FONT(10);
  g.textAlign = 'left';
  const colours = [theme.post, theme.wire, theme.wire, theme.place, theme.poll];
  for (let place = first; place < end; place++) {
    const message = list.order[place];
    const x0 = app.x(model.messages.begins[message]);
    const x1 = Math.max(app.x(model.messages.ends[message]), x0 + 2);
    if (x1 < app.gutter || x0 > app.box.width) continue;
    const left = Math.max(x0, app.gutter - 1);
    const right = Math.min(x1, app.box.width + 1);
    const row = Math.min(model.messages.rows[message], strip.rows - 1);
    const top = y + row * (height + 2);
    const failed = isFailure(model.run, message);
    if (receives || right - left < 5) {
      g.fillStyle = failed ? theme.lost : receives ? theme.receive : theme.wire;
      g.fillRect(left, top, right - left, height);
    } else {
      let from = x0;
      const unsent = stepTime(model.run, message, STEP.SENT) < 0;
      g.fillStyle = theme.post;
      g.fillRect(left, top, right - left, height);
      for (let step = 1; step < 6; step++) {
        const time = stepTime(model.run, message, step);
        if (time < 0) continue;
        const to = app.x(time);
        const a = Math.max(from, left);
        const b = Math.min(to, right);
        if (b > a) {
          g.fillStyle = unsent && step === STEP.COMPLETED ? theme.post : colours[step - 1];
          g.fillRect(a, top, b - a, height);
        }
        from = Math.max(from, to);
      }
      if (failed) {
        g.fillStyle = theme.lost;
        g.fillRect(Math.max(left, right - 4), top, 4, height);
      }
    }
    app.drawn.bars++;
    if (right - left > 52) {
      const label = `${messageTitle(model.run, message)}  #${messages.wrId[message]}`;
      g.fillStyle = theme.mark;
      const dark = theme.paper < '#888888';
      g.fillStyle = dark ? '#ffffff' : receives ? theme.ink : '#06263f';
      g.fillText(fitText(g, label, right - left - 10), left + 5, top + height / 2 + 0.5);
    }
    if (app.selected.message === message) {
      g.strokeStyle = theme.ink;
      g.lineWidth = 1.5;
      g.strokeRect(left - 1, top - 1, right - left + 2, height + 2);
    }
    hit(app, left - 1, top - 1, right + 1, top + height + 1, { message });
  }
}

// Whether bars would lie on each other: more work requests are under way than there are rows.
function overlapping(app, list, first, end, strip) {
  const { begins, ends, rows } = app.model.messages;
  const until = new Float64Array(strip.rows).fill(-Infinity);
  let over = 0;
  for (let place = first; place < end; place++) {
    const message = list.order[place];
    const row = Math.min(rows[message], strip.rows - 1);
    if (begins[message] < until[row] && ends[message] > app.view.from) over++;
    until[row] = Math.max(until[row], ends[message]);
  }
  return over > (end - first) / 5;
}

const isFailure = (run, message) => {
  const status = run.names[run.messages.status[message]];
  return status !== '' && !/SUCCESS/i.test(status);
};

// How many work requests were under way, on average over two pixels each: exact, from sums of begins and ends.
function drawOutstanding(app, g, list, y, strip, colour) {
  const { view, box, theme } = app;
  const step = 2;
  const columns = Math.ceil((box.width - app.gutter) / step);
  const perColumn = (view.to - view.from) / (box.width - app.gutter) * step;
  list.beginSums ||= sumsOf(list.times);
  list.endSums ||= sumsOf(list.ends);
  const area = (time) => {
    const begun = lowerBound(list.times, time, 0, list.to);
    const ended = lowerBound(list.ends, time, 0, list.to);
    return (begun - ended) * time - list.beginSums[begun] + list.endSums[ended];
  };
  const heights = new Float64Array(columns + 1);
  let most = 0;
  let before = area(view.from);
  for (let column = 0; column < columns; column++) {
    const after = area(view.from + (column + 1) * perColumn);
    heights[column] = Math.max(0, (after - before) / perColumn);
    most = Math.max(most, heights[column]);
    before = after;
  }
  const base = y + strip.height - 1;
  g.beginPath();
  g.moveTo(app.gutter, base);
  for (let column = 0; column < columns; column++) {
    const level = base - heights[column] / Math.max(most, 1e-9) * (strip.height - 2);
    g.lineTo(app.gutter + column * step, level);
    g.lineTo(app.gutter + (column + 1) * step, level);
  }
  g.lineTo(box.width, base);
  g.fillStyle = colour;
  g.globalAlpha = 0.55;
  g.fill();
  g.globalAlpha = 1;
  app.underWay.set(strip, `up to ${trim(most, most < 10 ? 1 : 0)} ${strip.what === 'receives' ? 'receives posted' : 'under way'}`);
  app.drawn.sums++;
}

function sumsOf(numbers) {
  const sums = new Float64Array(numbers.length + 1);
  for (let index = 0; index < numbers.length; index++) sums[index + 1] = sums[index] + numbers[index];
  return sums;
}

// ---- marks

const ALWAYS_MARKED = new Set([KIND.FINDING, KIND.INJECTED, KIND.ASYNC, KIND.NAK, KIND.DROPPED, KIND.RETRY]);

function drawMarks(app, g, owner, kinds, y, height) {
  const { model, view, theme } = app;
  const { events } = model.run;
  for (const kind of kinds) {
    if (!kindShown(app, kind)) continue;
    const list = model.list(owner, kind);
    const [first, end] = within(list, view.from, view.to);
    const crowded = end - first > (app.box.width - app.gutter) / 5;
    if (crowded && !ALWAYS_MARKED.has(kind)) {
      if (kind === KIND.COMPLETION) drawSums(app, g, list, y - 2, 4, theme.complete);
      continue;
    }
    if (crowded && (kind === KIND.DROPPED || kind === KIND.RETRY || kind === KIND.NAK)) {
      drawSums(app, g, list, y - 5 + (kind === KIND.RETRY ? 6 : 0), 4, theme[kind === KIND.RETRY ? 'again' : kind === KIND.NAK ? 'nak' : 'lost']);
      continue;
    }
    let lastX = -Infinity;
    const skip = crowded ? jumper(app, list) : null;
    for (let place = first; place < end; place = skip ? skip(place, end) : place + 1) {
      const event = list.order[place];
      const x = app.x(events.time[event]);
      if (x - lastX < (ALWAYS_MARKED.has(kind) ? 3 : 1.5)) continue;
      lastX = x;
      drawMark(app, g, kind, events.flags[event], x, y);
      app.drawn.marks++;
      if (kind === KIND.STATE && (place + 1 >= end || app.x(list.times[place + 1]) - x > 90) && !marksWithin(app, owner, kinds, events.time[event], 90)) {
        g.font = FONT(10.5);
        g.textAlign = 'left';
        haloText(app, g, nameText(model.run, events.name[event]), x + 7, y, theme.muted);
      }
      hit(app, x - 5, y - height / 2, x + 5, y + height / 2, { event });
    }
  }
}

// Whether other marks lie within so many pixels after a moment.
function marksWithin(app, owner, kinds, time, pixels) {
  return kinds.some((kind) => {
    if (kind === KIND.STATE || !kindShown(app, kind)) return false;
    const list = app.model.list(owner, kind);
    const [first, end] = within(list, time, time + pixels / app.scale);
    return end > first;
  });
}

// The next place of a list that is at least three pixels further.
function jumper(app, list) {
  const gap = 3 / app.scale;
  return (place, end) => Math.max(place + 1, lowerBound(list.times, list.times[place] + gap, place, end));
}

function drawMark(app, g, kind, flags, x, y) {
  const { theme } = app;
  const failed = (flags & FLAG.ERROR) !== 0;
  g.lineWidth = 1.5;
  g.beginPath();
  switch (kind) {
    case KIND.COMPLETION:
      if (failed) { diamond(g, x, y, 5); g.fillStyle = theme.lost; } else { g.arc(x, y, 3.2, 0, TAU); g.fillStyle = theme.complete; }
      g.fill();
      break;
    case KIND.POLL:
      g.arc(x, y, 2.6, 0, TAU);
      g.strokeStyle = theme.complete;
      g.stroke();
      break;
    case KIND.STATE:
      g.fillStyle = failed ? theme.lost : theme.muted;
      g.fillRect(x - 1, y - 6, 2, 12);
      break;
    case KIND.RETRY:
      g.arc(x, y, 4, 0.6, TAU - 0.6);
      g.moveTo(x + 6, y - 3.4);
      g.lineTo(x + 3.2, y - 2.4);
      g.lineTo(x + 4, y - 5.4);
      g.strokeStyle = theme.again;
      g.stroke();
      break;
    case KIND.DROPPED:
      cross(g, x, y, 3);
      g.moveTo(x + 5.5, y);
      g.arc(x, y, 5.5, 0, TAU);
      g.strokeStyle = theme.lost;
      g.stroke();
      break;
    case KIND.NAK:
      g.rect(x - 4, y - 4, 8, 8);
      g.fillStyle = theme.nak;
      g.fill();
      break;
    case KIND.FINDING:
    case KIND.INJECTED:
    case KIND.ASYNC:
      g.moveTo(x, y - 6);
      g.lineTo(x + 6, y + 5);
      g.lineTo(x - 6, y + 5);
      g.closePath();
      g.fillStyle = kind === KIND.INJECTED ? theme.injected : failed || kind === KIND.FINDING ? theme.lost : theme.accent;
      g.fill();
      break;
    case KIND.POST:
      g.moveTo(x - 3, y - 3);
      g.lineTo(x + 3, y - 3);
      g.lineTo(x, y + 2.5);
      g.fillStyle = theme.wire;
      g.fill();
      break;
    default:
      g.arc(x, y, 2, 0, TAU);
      g.fillStyle = theme.faint;
      g.fill();
  }
}

function diamond(g, x, y, size) {
  g.moveTo(x, y - size);
  g.lineTo(x + size, y);
  g.lineTo(x, y + size);
  g.lineTo(x - size, y);
  g.closePath();
}

function cross(g, x, y, size) {
  g.moveTo(x - size, y - size);
  g.lineTo(x + size, y + size);
  g.moveTo(x + size, y - size);
  g.lineTo(x - size, y + size);
}

// ---- packets

// How an arrow is drawn; troubles come last, so that they lie above.
const ARROW_STYLES = [
  { name: 'control', width: 1, dash: [2, 3] }, { name: 'answer', width: 1, dash: [] }, { name: 'request', width: 1.35, dash: [] },
  { name: 'again', width: 1.7, dash: [6, 3] }, { name: 'nak', width: 2, dash: [] }, { name: 'lost', width: 1.8, dash: [] },
];

function arrowStyle(flags) {
  if (flags & FLAG.LOST) return 5;
  if (flags & FLAG.NAK) return 4;
  if (flags & FLAG.AGAIN) return 3;
  if (flags & FLAG.CONTROL) return 0;
  return flags & FLAG.ANSWER ? 1 : 2;
}

function drawWires(app, g, visible, top) {
  const { model, view, layout } = app;
  const gaps = new Map();
  for (const row of visible) {
    if (row.type === 'gap') for (const lane of row.lanes) gaps.set(lane, row);
    if (row.type === 'lane' && !gaps.has(row.lane)) {
      const at = layout.rows.indexOf(row);
      const gap = row.below ? layout.rows[at - 1] : layout.rows[at + 1];
      if (gap && gap.type === 'gap') gaps.set(row.lane, gap);
    }
  }
  const batches = ARROW_STYLES.map(() => []);
  app.crowded = [];
  const summed = new Map();
  const wide = app.box.width - app.gutter;
  const stretches = new Map();
  const totals = new Map();
  for (const [lane, gap] of gaps) {
    const stretch = within(model.laneList(lane, KIND.SENT), view.from - model.reachOf(lane, KIND.SENT), view.to);
    stretches.set(lane, stretch);
    totals.set(gap, (totals.get(gap) || 0) + stretch[1] - stretch[0]);
  }
  for (const [lane, gap] of gaps) {
    const list = model.laneList(lane, KIND.SENT);
    const [first, end] = stretches.get(lane);
    if (totals.get(gap) > wide * ARROWS_PER_PIXEL) {
      if (!summed.has(gap)) summed.set(gap, []);
      summed.get(gap).push(lane);
      collectTrouble(app, lane, gap, top, batches);
    } else {
      collectArrows(app, list, first, end, lane, gap, top, batches);
    }
    collectStrays(app, lane, gap, top, batches);
  }
  for (const [gap, lanes] of summed) drawTraffic(app, g, gap, lanes, top);
  for (const { lane, gap, list } of app.crowded) {
    // What went wrong stands on the wire of the lane that sent it.
    const below = gap.lanes.indexOf(lane) === 1;
    drawSums(app, g, list, gap.y - top + (below ? gap.height - 9 : 3), 6, app.theme.lost);
  }
  strokeArrows(app, g, batches);
}

function collectArrows(app, list, first, end, lane, gap, top, batches) {
  for (let place = first; place < end; place++) collectArrow(app, list.order[place], lane, gap, top, batches);
}

function collectArrow(app, event, lane, gap, top, batches) {
  const { model, layout } = app;
  const { events } = model.run;
  const flags = events.flags[event];
  const kind = KIND.SENT;
  if (!kindShown(app, kind)) return;
  const x0 = app.x(events.time[event]);
  const y0 = (layout.wires.get(lane) ?? gap.y) - top;
  const partner = events.partner[event] - 1;
  let x1;
  let y1;
  let open = false;
  const away = y0 + top <= gap.y + 1 ? 1 : -1;
  if (partner >= 0) {
    x1 = app.x(events.time[partner]);
    const to = events.lane[partner] > 0 ? layout.wires.get(events.lane[partner] - 1) : undefined;
    if (to === undefined || to === layout.wires.get(lane)) { y1 = y0 + away * gap.height * 0.6; open = true; } else y1 = to - top;
  } else {
    const share = flags & FLAG.LOST ? 0.55 : 0.6;
    x1 = app.x(events.time[event] + model.flights[lane] * share);
    y1 = y0 + away * gap.height * share;
    open = true;
  }
  if (x1 < app.gutter - 40 && x0 < app.gutter - 40) return;
  batches[arrowStyle(flags)].push({ event, x0, y0, x1, y1, open, flags });
}

// What went wrong, also where packets are sums.
function collectTrouble(app, lane, gap, top, batches) {
  const { model, view } = app;
  const list = model.notable.sentByLane[lane];
  const [first, end] = within(list, view.from - model.flights[lane], view.to);
  if (end - first > (app.box.width - app.gutter) * TROUBLE_PER_PIXEL) {
    app.crowded.push({ lane, gap, list });
    return;
  }
  const next = jumper(app, list);
  for (let place = first; place < end; place = next(place, end)) collectArrow(app, list.order[place], lane, gap, top, batches);
}

// Arrivals whose sender is not in the recording.
function collectStrays(app, lane, gap, top, batches) {
  const { model, view, layout } = app;
  const { events } = model.run;
  const list = model.laneList(lane, KIND.RECEIVED);
  const [first, end] = within(list, view.from, view.to);
  if (end - first > (app.box.width - app.gutter) * ARROWS_PER_PIXEL || !kindShown(app, KIND.RECEIVED)) return;
  const y1 = (layout.wires.get(lane) ?? gap.y) - top;
  const away = y1 + top <= gap.y + 1 ? 1 : -1;
  for (let place = first; place < end; place++) {
    const event = list.order[place];
    if (events.partner[event] > 0) continue;
    const x1 = app.x(events.time[event]);
    const x0 = app.x(events.time[event] - model.flights[lane] * 0.6);
    batches[arrowStyle(events.flags[event])].push({ event, x0, y0: y1 + away * gap.height * 0.6, x1, y1, flags: events.flags[event] });
  }
}

function strokeArrows(app, g, batches) {
  const { theme, model, selected } = app;
  const chosen = selected.message;
  const labels = [];
  const total = batches.reduce((sum, batch) => sum + batch.length, 0);
  app.arrows = [];
  batches.forEach((batch, index) => {
    if (batch.length === 0) return;
    const style = ARROW_STYLES[index];
    const colour = theme[style.name];
    for (const own of chosen >= 0 ? [false, true] : [false]) {
      const part = chosen < 0 ? batch : batch.filter((arrow) => (model.run.events.message[arrow.event] - 1 === chosen) === own);
      if (part.length === 0) continue;
      g.globalAlpha = chosen >= 0 && !own ? 0.3 : 1;
      g.strokeStyle = colour;
      g.fillStyle = colour;
      g.lineWidth = own ? style.width + 0.9 : style.width;
      g.setLineDash(style.dash);
      g.beginPath();
      for (const arrow of part) { g.moveTo(arrow.x0, arrow.y0); g.lineTo(arrow.x1, arrow.y1); }
      g.stroke();
      g.setLineDash([]);
      g.beginPath();
      for (const arrow of part) if (!arrow.open) arrowHead(g, arrow, 6);
      g.fill();
      g.lineWidth = 2;
      g.beginPath();
      for (const arrow of part) {
        if (arrow.flags & FLAG.LOST) cross(g, arrow.x1, arrow.y1, 4.5);
        if (arrow.flags & FLAG.NAK && !arrow.open) g.rect(arrow.x1 - 3.5, arrow.y1 - 3.5, 7, 7);
      }
      g.stroke();
    }
    g.globalAlpha = 1;
    for (const arrow of batch) {
      app.drawn.arrows++;
      app.arrows.push({ ...arrow, style: style.name });
      app.shapes.push({ line: true, ...arrow });
      if (total < (app.box.width - app.gutter) / 9 && (chosen < 0 || model.run.events.message[arrow.event] - 1 === chosen)) labels.push(arrow);
    }
  });
  labelArrows(app, g, labels);
}

function arrowHead(g, { x0, y0, x1, y1 }, size) {
  const length = Math.hypot(x1 - x0, y1 - y0) || 1;
  const ux = (x1 - x0) / length;
  const uy = (y1 - y0) / length;
  g.moveTo(x1, y1);
  g.lineTo(x1 - ux * size - uy * size * 0.42, y1 - uy * size + ux * size * 0.42);
  g.lineTo(x1 - ux * size + uy * size * 0.42, y1 - uy * size - ux * size * 0.42);
  g.closePath();
}

// Opcode and PSN beside an arrow, where there is room for them.
function labelArrows(app, g, arrows) {
  const { model, theme } = app;
  const taken = [];
  g.font = FONT(10.5);
  g.textAlign = 'left';
  // What went wrong is labelled first.
  const ranked = [...arrows].sort((a, b) => (b.flags & TROUBLE_FLAGS ? 1 : 0) - (a.flags & TROUBLE_FLAGS ? 1 : 0) || a.x0 - b.x0);
  for (const arrow of ranked) {
    const text = shortName(nameText(model.run, model.run.events.name[arrow.event]))
      + (hasField(model, arrow.event, 'psn') ? ` ${numberOf(model, arrow.event, 'psn')}` : '');
    const share = arrow.y1 > arrow.y0 ? 0.36 : 0.4;
    const x = arrow.x0 + (arrow.x1 - arrow.x0) * share + 7;
    const y = arrow.y0 + (arrow.y1 - arrow.y0) * share;
    if (x < app.gutter) continue;
    const wide = g.measureText(text).width;
    if (taken.some((box) => x < box.x1 + 8 && x + wide + 8 > box.x0 && Math.abs(y - box.y) < 12)) continue;
    if (arrows.length > 60 && crosses(arrows, arrow, x, x + wide, y) > 2) continue;
    taken.push({ x0: x, x1: x + wide, y });
    haloText(app, g, text, x, y, arrow.flags & TROUBLE_FLAGS ? theme.ink : theme.muted);
    app.drawn.labels.push(text);
  }
}

function crosses(arrows, self, x0, x1, y) {
  let count = 0;
  for (const arrow of arrows) {
    if (arrow === self || (arrow.y0 - y) * (arrow.y1 - y) > 0) continue;
    const at = arrow.x0 + (arrow.x1 - arrow.x0) * ((y - arrow.y0) / ((arrow.y1 - arrow.y0) || 1));
    if (at > x0 && at < x1) count++;
  }
  return count;
}

const shortName = (name) => name.replace(/^(RC|UC|UD|RD|XRC) /, '').replace(/^RDMA[_ ]/, '').replace(/ACKNOWLEDGE$/i, 'ACK')
  .replace(/[_ ]with[_ ]immediate/i, ' imm');

// Bytes in both directions: the upper lane's hang from its wire, the lower lane's stand on theirs.
function drawTraffic(app, g, gap, lanes, top) {
  const { model, view, theme, box } = app;
  const step = 2;
  const columns = Math.ceil((box.width - app.gutter) / step);
  const perColumn = (view.to - view.from) / (box.width - app.gutter) * step;
  const y0 = gap.y - top;
  const parts = lanes.map((lane) => {
    const list = model.laneList(lane, KIND.SENT);
    const [first, end] = within(list, view.from, view.to);
    const bytes = list.sums[end] > list.sums[first];
    const values = new Float64Array(columns);
    let place = first;
    for (let column = 0; column < columns && place < end; column++) {
      const next = lowerBound(list.times, view.from + (column + 1) * perColumn, place, end);
      values[column] = bytes ? list.sums[next] - list.sums[place] : next - place;
      place = next;
    }
    return { lane, values, bytes, below: gap.lanes.indexOf(lane) === 1 };
  });
  for (const part of parts) {
    let most = 0;
    for (const value of part.values) most = Math.max(most, value);
    if (most === 0) continue;
    const tall = gap.height * (part.bytes ? 0.62 : 0.26);
    const base = part.below ? y0 + gap.height : y0;
    const sign = part.below ? -1 : 1;
    g.beginPath();
    g.moveTo(app.gutter, base);
    for (let column = 0; column < columns; column++) {
      const level = base + sign * tall * part.values[column] / most;
      g.lineTo(app.gutter + column * step, level);
      g.lineTo(app.gutter + (column + 1) * step, level);
    }
    g.lineTo(box.width, base);
    g.fillStyle = part.bytes ? theme.request : theme.answer;
    g.globalAlpha = part.bytes ? 0.5 : 0.35;
    g.fill();
    g.globalAlpha = 1;
    const peak = `${part.below ? '↑' : '↓'} peak ${part.bytes ? rateText(most / perColumn) : countRate(most / perColumn)}`;
    if (!app.peaks.has(gap)) app.peaks.set(gap, []);
    app.peaks.get(gap).push(peak);
    app.drawn.labels.push(peak);
  }
  app.drawn.sums++;
}

function countRate(perNanosecond) {
  const second = perNanosecond * 1e9;
  return second >= 1e6 ? `${trim(second / 1e6, 1)} M packets/s` : `${grouped(Math.round(second))} packets/s`;
}

// A connection in one line: how much moved, and what went wrong.
function drawCollapsed(app, g, row, y) {
  const gap = { y: row.y + 4, height: row.height - 8, lanes: row.lanes };
  drawTraffic(app, g, gap, row.lanes, row.y - y);
  const { model, view, theme } = app;
  for (const lane of row.lanes) {
    const list = model.notable.ofLane[lane];
    const [first, end] = within(list, view.from, view.to);
    const next = jumper(app, list);
    g.fillStyle = theme.lost;
    for (let place = first; place < end; place = next(place, end)) g.fillRect(app.x(list.times[place]) - 1, y + 4, 2, row.height - 8);
  }
}

// ---- memory

function drawRegion(app, g, row, y) {
  const { model, view, theme } = app;
  const { run } = model;
  const region = run.regions[row.region];
  const top = y + 3;
  const height = row.height - 6;
  const from = region.registered === null ? app.gutter : Math.max(app.gutter, app.x(region.registered));
  const to = region.deregistered === null ? app.box.width : Math.min(app.box.width, app.x(region.deregistered));
  g.fillStyle = theme.raised;
  if (to > from) g.fillRect(from, top, to - from, height);
  const list = model.accesses[row.region];
  const [first, end] = within(list, view.from, view.to);
  const length = Math.max(Number(region.length), 1);
  const step = Math.max(1, Math.ceil((end - first) / BARS_MAX));
  for (let place = first; place < end; place += step) {
    const access = list.order[place];
    const event = run.accesses.event[access];
    const x = app.x(list.times[place]);
    const begin = Math.min(1, Number(run.accesses.offset[access]) / length);
    const size = Math.min(1 - begin, Number(run.accesses.length[access]) / length);
    const y0 = top + begin * (height - 2);
    const tall = Math.max(2, size * height);
    g.fillStyle = processColour(theme, actorOf(run, event));
    g.globalAlpha = run.accesses.write[access] ? 0.9 : 0.4;
    if (run.accesses.write[access]) g.fillRect(x - 1, y0, 3, tall); else { g.fillRect(x - 1, y0, 3, 1); g.fillRect(x - 1, y0 + tall - 1, 3, 1); }
    hit(app, x - 3, y0 - 2, x + 4, y0 + tall + 2, { event, access });
  }
  g.globalAlpha = 1;
  app.drawn.bars += Math.ceil((end - first) / step);
}

// ---- what lies above

function drawSelection(app, g) {
  const { model, selected, theme, layout } = app;
  const { events } = model.run;
  if (selected.event >= 0) {
    const x = app.x(events.time[selected.event]);
    g.fillStyle = theme.accent;
    g.globalAlpha = 0.55;
    g.fillRect(x - 0.5, TOP, 1, app.box.height);
    g.globalAlpha = 1;
    const shape = app.shapes.find((shape) => shape.event === selected.event);
    if (shape) {
      g.strokeStyle = theme.accent;
      g.lineWidth = 2;
      g.beginPath();
      if (shape.line) {
        g.lineWidth = 9;
        g.lineCap = 'round';
        g.globalAlpha = 0.25;
        g.moveTo(shape.x0, shape.y0);
        g.lineTo(shape.x1, shape.y1);
      } else {
        g.roundRect(shape.x0 - 1, shape.y0 - 1, shape.x1 - shape.x0 + 2, shape.y1 - shape.y0 + 2, 4);
      }
      g.stroke();
      g.lineCap = 'butt';
      g.globalAlpha = 1;
    }
  }
  if (app.found.count > 0 && app.found.count < 20000) {
    g.strokeStyle = theme.hit;
    g.lineWidth = 2;
    g.beginPath();
    let drawn = 0;
    for (const shape of app.shapes) {
      if (!(shape.event >= 0) || !app.found.marked[shape.event] || drawn++ > 1500) continue;
      const x = shape.line ? shape.x0 : (shape.x0 + shape.x1) / 2;
      const y = shape.line ? shape.y0 : (shape.y0 + shape.y1) / 2;
      g.moveTo(x + 7, y);
      g.arc(x, y, 7, 0, TAU);
    }
    g.stroke();
  }
}

function drawFlagLines(app, g) {
  const { model, theme } = app;
  const list = model.notable.flags;
  const [first, end] = within(list, app.view.from, app.view.to);
  if (end - first > 40) return;
  g.setLineDash([2, 4]);
  g.lineWidth = 1;
  for (let place = first; place < end; place++) {
    const kind = model.run.events.kind[list.order[place]];
    if (!kindShown(app, kind)) continue;
    const quiet = kind === KIND.ASYNC && !(model.run.events.flags[list.order[place]] & FLAG.ERROR);
    g.strokeStyle = kind === KIND.INJECTED ? theme.injected : quiet ? theme.accent : theme.lost;
    g.globalAlpha = 0.6;
    const x = Math.round(app.x(list.times[place])) + 0.5;
    g.beginPath();
    g.moveTo(x, TOP);
    g.lineTo(x, app.box.height);
    g.stroke();
  }
  g.globalAlpha = 1;
  g.setLineDash([]);
}

// Findings, injected failures and asynchronous events, on a line of their own that is always in view.
function drawFlags(app, g) {
  const { model, theme, view, box } = app;
  const { run } = model;
  const list = model.notable.flags;
  g.fillStyle = theme.paper;
  g.fillRect(app.gutter, SIZE.ruler, box.width, SIZE.flags - 1);
  const [first, end] = within(list, view.from, view.to);
  g.font = FONT(11, 550);
  g.textAlign = 'left';
  let free = app.gutter;
  let more = 0;
  let moreAt = 0;
  const next = end - first > 400 ? jumper(app, list) : (place) => place + 1;
  for (let place = first; place < end; place = next(place, end)) {
    const event = list.order[place];
    const kind = run.events.kind[event];
    if (!kindShown(app, kind)) continue;
    const x = app.x(list.times[place]);
    if (free - x > FLAG_SHIFT_MAX) { more++; moreAt = x; continue; }
    if (more > 0 && x - free > 26) {
      g.fillStyle = theme.muted;
      g.fillText(`+${more}`, free + 2, SIZE.ruler + 12);
    }
    more = 0;
    const text = fitText(g, nameText(run, run.events.name[event]) || kindText(run, event), 168);
    const wide = g.measureText(text).width + 14;
    const at = Math.max(app.gutter, x, free);
    if (at + wide > box.width - 30) {
      if (x > box.width - wide - 30 && free < x - wide) {
        // The last flag opens to the left.
        flagPill(app, g, event, x - wide, wide, text, [5, 0, 5, 5]);
        free = x + 4;
      } else { more++; moreAt = x; }
      continue;
    }
    flagPill(app, g, event, at, wide, text, at === x ? [0, 5, 5, 5] : 5);
    free = at + wide + 4;
  }
  if (more > 0) {
    g.fillStyle = theme.muted;
    g.fillText(`+${more}`, Math.min(free + 2, box.width - 28), SIZE.ruler + 12);
  }
}

function flagPill(app, g, event, at, wide, text, corners) {
  const { theme } = app;
  const { events } = app.model.run;
  const kind = events.kind[event];
  g.fillStyle = kind === KIND.INJECTED ? theme.injected : kind === KIND.ASYNC && !(events.flags[event] & FLAG.ERROR) ? theme.accent : theme.lost;
  g.beginPath();
  g.roundRect(at, SIZE.ruler + 3, wide, 18, corners);
  g.fill();
  g.fillStyle = theme.mark;
  g.fillText(text, at + 7, SIZE.ruler + 12.5);
  hit(app, at, SIZE.ruler + 1, at + wide, SIZE.ruler + 22, { event });
}

function drawGutter(app, g, visible, top) {
  const { model, theme, box, gutter } = app;
  const { run } = model;
  g.save();
  g.beginPath();
  g.rect(0, TOP, box.width, box.height - TOP);
  g.clip();
  g.fillStyle = theme.paper;
  g.fillRect(0, TOP, gutter, box.height);
  g.fillStyle = theme.line;
  g.fillRect(gutter - 1, TOP, 1, box.height);
  g.textAlign = 'left';
  const left = gutter < 150 ? 12 : 18;
  const room = gutter - left - 12;
  const label = (text, x, y, font, colour, wide) => {
    g.font = font;
    g.fillStyle = colour;
    g.fillText(fitText(g, text, wide), x, y);
  };
  for (const row of visible) {
    const y = row.y - top;
    if (row.type === 'section') {
      g.fillStyle = theme.paper;
      g.fillRect(0, y, box.width, row.height);
      label(row.title, left, y + row.height / 2 + 2, FONT(12.5, 650), theme.ink, box.width);
      const offset = row.title ? g.measureText(row.title).width + 14 : 0;
      label(row.note, left + offset, y + row.height / 2 + 2, FONT(11.5), theme.muted, box.width - left - offset - 12);
    }
    if (row.type === 'program') {
      const process = run.processes[row.process];
      g.fillStyle = processColour(theme, row.process);
      g.fillRect(left - 9, y + 5, 3, row.height - 9);
      label(nameText(run, process.name) || 'process', left, y + 13, FONT(12.5, 550), theme.ink, room);
      const host = nameText(run, process.host);
      label(`pid ${process.pid}${host ? ` on ${host}` : ''}`, left, y + 28, FONT(11.5), theme.muted, room);
    }
    if (row.type === 'lane') {
      const lane = run.lanes[row.lane];
      g.fillStyle = processColour(theme, lane.process);
      g.fillRect(left - 9, y + 5, 3, row.height - 9);
      const notes = row.strips.map((strip) => app.underWay.get(strip)).filter(Boolean).slice(0, 1);
      const middle = y + row.height / 2 - notes.length * 8;
      label(`${gutter < 150 ? hex(lane.qpn) : laneText(run, row.lane)}  ${nameText(run, lane.kind)}`, left, middle - 8, FONT(12.5, 550), theme.ink, room);
      label(processText(run, lane.process), left, middle + 8, FONT(11.5), theme.muted, room);
      if (row.height > 56) label(notes[0] || '', left, middle + 24, FONT(11), theme.muted, room);
      hit(app, 0, y, gutter, y + row.height, { lane: row.lane });
    }
    if (row.type === 'gap') {
      const link = nameText(run, run.lanes[row.lanes[0]].link);
      const alone = row.lanes.length === 1 ? nameText(run, run.lanes[row.lanes[0]].peer_label) : '';
      const peaks = app.peaks.get(row) || [];
      const lines = [alone ? `to ${alone}` : link, ...(row.height > 44 ? peaks : [])].filter(Boolean);
      lines.forEach((line, index) => label(line, left, y + row.height / 2 + (index - (lines.length - 1) / 2) * 16, FONT(11), theme.muted, room));
    }
    if (row.type === 'collapsed') {
      label(row.lanes.map((lane) => laneText(run, lane)).join(' ⇄ '), left, y + 13, FONT(12.5, 550), theme.ink, room);
      label('press c to open', left, y + 28, FONT(11.5), theme.muted, room);
      hit(app, 0, y, gutter, y + row.height, { lane: row.lanes[0] });
    }
    if (row.type === 'region') {
      const region = run.regions[row.region];
      g.fillStyle = processColour(theme, region.process);
      g.fillRect(left - 9, y + 4, 3, row.height - 8);
      label(`R_Key ${hex(region.rkey)}`, left, y + 13, FONT(12, 550), theme.ink, room);
      label(`${sizeText(region.length)} of ${processText(run, region.process)}`, left, y + 28, FONT(11.5), theme.muted, room);
      hit(app, 0, y, gutter, y + row.height, { region: row.region });
    }
  }
  const focused = visible.find((row) => row === app.layout.rows[app.focusRow]);
  if (focused && document.activeElement === app.stage) {
    g.strokeStyle = theme.accent;
    g.lineWidth = 1.5;
    g.strokeRect(3, focused.y - top + 1, gutter - 8, focused.height - 2);
  }
  g.restore();
}

function drawPointer(app, g) {
  const { pointer, theme, box } = app;
  if (app.band) {
    const [x0, x1] = [Math.min(app.band.from, app.band.to), Math.max(app.band.from, app.band.to)];
    g.fillStyle = theme.accent;
    g.globalAlpha = 0.18;
    g.fillRect(x0, SIZE.ruler, x1 - x0, box.height);
    g.globalAlpha = 1;
    g.font = FONT(11.5, 600);
    g.textAlign = 'center';
    haloText(app, g, duration((x1 - x0) / app.scale), (x0 + x1) / 2, TOP + 12, theme.ink);
    return;
  }
  if (!pointer || pointer.x < app.gutter || app.printing) return;
  g.fillStyle = theme['strong-line'];
  g.fillRect(Math.round(pointer.x), SIZE.ruler, 1, box.height);
  const text = moment(app.view.from + (pointer.x - app.gutter) / app.scale);
  g.font = FONT(11.5, 550);
  const wide = g.measureText(text).width + 12;
  const at = Math.max(app.gutter, Math.min(pointer.x - wide / 2, box.width - wide));
  g.fillStyle = theme.ink;
  g.beginPath();
  g.roundRect(at, 4, wide, 19, 5);
  g.fill();
  g.fillStyle = theme.paper;
  g.textAlign = 'left';
  g.fillText(text, at + 6, 14);
}

// What lies at a point: the bar or mark drawn last, or the nearest arrow.
function shapeAt(app, x, y) {
  let line = null;
  let nearest = HIT_DISTANCE;
  for (let index = app.shapes.length - 1; index >= 0; index--) {
    const shape = app.shapes[index];
    if (!shape.line) {
      if (x >= shape.x0 && x <= shape.x1 && y >= shape.y0 && y <= shape.y1) return shape;
      continue;
    }
    const distance = distanceTo(shape, x, y);
    if (distance < nearest) { nearest = distance; line = shape; }
  }
  return line;
}

function distanceTo({ x0, y0, x1, y1 }, x, y) {
  const dx = x1 - x0;
  const dy = y1 - y0;
  const along = Math.max(0, Math.min(1, ((x - x0) * dx + (y - y0) * dy) / ((dx * dx + dy * dy) || 1)));
  return Math.hypot(x - x0 - along * dx, y - y0 - along * dy);
}

// ---- overview

function drawOverview(app) {
  const canvas = app.overview;
  const { theme, model, view } = app;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (width === 0) return;
  sizeCanvas(canvas, width, height, app.ratio);
  const g = canvas.getContext('2d');
  g.setTransform(app.ratio, 0, 0, app.ratio, 0, 0);
  g.fillStyle = theme.raised;
  g.fillRect(0, 0, width, height);
  const { events } = model.run;
  const columns = Math.ceil(width / 2);
  const all = { times: events.time, from: 0, to: events.count };
  if (app.overviewKey !== `${columns}`) {
    app.overviewKey = `${columns}`;
    app.overviewCounts = new Float64Array(columns);
    let place = 0;
    for (let column = 0; column < columns; column++) {
      const next = column + 1 === columns ? all.to : lowerBound(all.times, model.end * (column + 1) / columns, place, all.to);
      app.overviewCounts[column] = next - place;
      place = next;
    }
  }
  const most = app.overviewCounts.reduce((a, b) => Math.max(a, b), 1);
  g.fillStyle = theme.faint;
  g.globalAlpha = 0.65;
  for (let column = 0; column < columns; column++) {
    if (app.overviewCounts[column] === 0) continue;
    const tall = Math.max(2, Math.sqrt(app.overviewCounts[column] / most) * (height - 12));
    g.fillRect(column * 2, height - 2 - tall, 2, tall);
  }
  g.globalAlpha = 1;
  const at = (time) => time / model.end * width;
  const ticks = (list, colour, y, tall, keep) => {
    g.fillStyle = colour;
    const gap = model.end / width * 2;
    for (let place = list.from; place < list.to; place = Math.max(place + 1, lowerBound(list.times, list.times[place] + gap, place, list.to))) {
      if (keep && !keep(list.order[place])) continue;
      g.fillRect(at(list.times[place]) - 1, y, 2, tall);
    }
  };
  ticks(model.notable.trouble, theme.lost, 1, 6);
  ticks(model.notable.flags, theme.injected, 1, height - 2, (event) => events.kind[event] === KIND.INJECTED);
  if (app.found.count > 0) ticks(app.found.list, theme.hit, height - 7, 7);
  const x0 = at(view.from);
  const x1 = Math.max(at(view.to), x0 + 3);
  g.fillStyle = theme.paper;
  g.globalAlpha = 0.62;
  g.fillRect(0, 0, Math.max(0, x0), height);
  g.fillRect(x1, 0, Math.max(0, width - x1), height);
  g.globalAlpha = 1;
  g.strokeStyle = theme.accent;
  g.lineWidth = 1.5;
  g.strokeRect(Math.max(0.75, x0), 0.75, Math.min(width - 1.5, x1 - x0), height - 1.5);
}

function sizeCanvas(canvas, width, height, ratio) {
  const [wide, tall] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== tall) {
    canvas.width = wide;
    canvas.height = tall;
  }
}

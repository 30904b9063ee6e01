// The page: what is in view, what is selected, keys, mouse and touch; and `window.ubiverbs`, by which tests see what is
// drawn. It holds no data of its own.

const ZOOM_STEP = 1.6;
const SPAN_MIN = 20;

function start(run, unpackedAfter) {
  const model = buildModel(run);
  const byId = (id) => document.getElementById(id);
  const stage = byId('stage');
  const canvas = byId('canvas');
  const app = {
    model, stage, canvas, context: canvas.getContext('2d', { alpha: false }), overview: byId('overview'), inspector: byId('inspector'),
    views: { timeline: byId('timeline-view'), latency: byId('latency-view'), events: byId('events-view') }, viewName: 'timeline',
    options: { hiddenKinds: new Set(), hiddenProcesses: new Set(), hiddenLanes: new Set(), collapsed: new Set(), regionsMax: 64 },
    view: { from: 0, to: 1 }, scroll: 0, gutter: 214, ratio: 1, box: { width: 0, height: 0 }, shapes: [], arrows: [], drawn: {},
    selected: { event: -1, message: -1, region: -1, lane: -1 }, found: { count: 0, marked: null, list: null, at: -1 }, table: { offset: 0 },
    pointer: null, band: null, focusRow: -1, theme: readTheme(), frames: [], printing: false,
  };

  // ---- drawing when something changed, once a frame

  let wanted = false;
  const draw = () => {
    wanted = false;
    const begin = performance.now();
    app.scroll = stage.scrollTop;
    drawTimeline(app);
    drawOverview(app);
    app.frames.push(performance.now() - begin);
    if (app.frames.length > 600) app.frames.shift();
  };
  const invalidate = () => { if (!wanted) { wanted = true; requestAnimationFrame(draw); } };
  app.invalidate = invalidate;

  const relayout = () => {
    app.layout = buildRows(model, { ...app.options, room: app.printing ? 0 : app.box.height - TOP });
    byId('spacer').style.height = `${Math.max(0, app.layout.height + TOP - app.box.height)}px`;
    invalidate();
  };

  const resize = () => {
    const width = app.printing ? 1080 : stage.clientWidth;
    if (app.printing) app.layout = buildRows(model, { ...app.options, room: 0 });
    const height = app.printing ? Math.min(2400, app.layout.height + TOP) : stage.clientHeight;
    if (width === 0 || height === 0) return;
    app.ratio = app.printing ? 2 : Math.min(window.devicePixelRatio || 1, 3);
    app.gutter = width < 640 ? 104 : 214;
    app.box = { width, height };
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    sizeCanvas(canvas, width, height, app.ratio);
    relayout();
    // A canvas is empty when its size has changed: it is drawn before the browser shows it.
    draw();
  };

  // ---- what is in view

  const margin = () => model.end * 0.012;
  const setView = (from, to) => {
    const least = -margin() * 2;
    const most = model.end + margin() * 2;
    let span = Math.min(Math.max(to - from, SPAN_MIN), most - least);
    let begin = (from + to) / 2 - span / 2;
    begin = Math.max(least, Math.min(begin, most - span));
    app.view = { from: begin, to: begin + span };
    app.table.offset = 0;
    invalidate();
    changed();
  };
  const fit = () => setView(-margin(), model.end + margin());
  const zoomAt = (time, factor) => {
    const { from, to } = app.view;
    setView(time - (time - from) / factor, time + (to - time) / factor);
  };
  const zoom = (factor) => {
    const { from, to } = app.view;
    const at = app.selected.event >= 0 ? run.events.time[app.selected.event] : (from + to) / 2;
    zoomAt(at > from && at < to ? at : (from + to) / 2, factor);
  };
  const pan = (share) => {
    const { from, to } = app.view;
    setView(from + (to - from) * share, to + (to - from) * share);
  };
  app.zoomToMessage = (message) => {
    const [begin, end] = messageSpan(run, message);
    if (begin < 0) return;
    const span = Math.max((end - begin) * 1.4, 200);
    setView((begin + end) / 2 - span / 2, (begin + end) / 2 + span / 2);
  };

  // What follows from a change of the view, when it has come to rest.
  let rest = 0;
  const changed = () => {
    clearTimeout(rest);
    rest = setTimeout(() => {
      if (app.viewName === 'events') showEvents(app);
      if (app.viewName === 'latency') showLatency(app);
      if (app.selected.region >= 0) showInspector(app);
      const { first, end } = eventsInView(app);
      byId('status').textContent = `${counted(end - first, 'event', 'events')} in ${duration(app.view.to - app.view.from)}`;
      // What was just said of an event is not talked over.
      if (performance.now() - saidAt > 1500) say(`From ${moment(app.view.from)} to ${moment(app.view.to)}: ${counted(end - first, 'event', 'events')}`);
    }, 180);
  };
  let saidAt = -Infinity;
  const say = (text) => { byId('live').textContent = text; saidAt = performance.now(); };

  // ---- selection

  let revealLater = false;
  app.select = (what, reveal) => {
    app.selected = { event: -1, message: -1, region: -1, lane: -1, ...what };
    const { event, lane } = app.selected;
    if (event >= 0 && app.selected.message < 0 && run.events.message[event] > 0) app.selected.message = run.events.message[event] - 1;
    const { message } = app.selected;
    showInspector(app);
    if (reveal && app.viewName === 'events') {
      // The table shows what is in view, so that stays as it is until the timeline is shown.
      revealLater = true;
    } else if (reveal) {
      if (app.viewName === 'latency') app.show('timeline');
      if (event >= 0) revealTime(run.events.time[event], run.events.lane[event] - 1, run.events.process[event], event);
      else if (message >= 0) revealMessage(message);
      else if (lane >= 0) revealRow((row) => row.lane === lane);
    }
    if (event >= 0) say(eventLine(model, event));
    else if (message >= 0) say(`Work request ${run.messages.wrId[message]}: ${messageTitle(run, message)}, ${nameText(run, run.messages.status[message])}`);
    if (app.viewName === 'events') showEvents(app);
    invalidate();
  };
  const revealTime = (time, lane, process, event) => {
    const { from, to } = app.view;
    const most = closeSpan(lane, time, event);
    if (to - from > most) setView(time - most * 0.4, time + most * 0.6);
    else if (time < from + (to - from) * 0.04 || time > to - (to - from) * 0.04) setView(time - (to - from) * 0.4, time + (to - from) * 0.6);
    revealRow((row) => (lane >= 0 ? row.lane === lane || (row.lanes && row.lanes.includes(lane)) : row.type === 'program' && row.process === process));
  };
  // So much time that the packets around one are drawn singly.
  const closeSpan = (lane, time, event) => {
    const message = run.events.message[event] - 1;
    let span = Math.max(run.events.duration[event] * 4, 2000);
    if (message >= 0) span = Math.max(span, (model.messages.ends[message] - model.messages.begins[message]) * 3);
    if (lane >= 0) {
      const list = model.laneList(lane, KIND.SENT);
      const at = lowerBound(list.times, time, list.from, list.to);
      const around = [Math.max(list.from, at - 40), Math.min(list.to - 1, at + 40)];
      if (around[1] > around[0]) span = Math.max(Math.min(span, list.times[around[1]] - list.times[around[0]]), 2000);
    } else if (run.events.duration[event] === 0) {
      span = Math.max(span, model.end / 50);
    }
    return span;
  };
  const revealMessage = (message) => {
    const [begin, end] = messageSpan(run, message);
    const { from, to } = app.view;
    if (begin >= 0 && (begin < from || end > to || (end - begin) / (to - from) < 0.02)) app.zoomToMessage(message);
    revealRow((row) => row.lane === run.messages.lane[message]);
  };
  const revealRow = (fits) => {
    const row = app.layout.rows.find(fits);
    if (!row) return;
    const room = app.box.height - TOP;
    if (row.y < stage.scrollTop || row.y + row.height > stage.scrollTop + room) stage.scrollTop = Math.max(0, row.y - room / 3);
  };
  app.neighbour = (by) => {
    const { event } = app.selected;
    if (event < 0) return;
    const lane = run.events.lane[event] - 1;
    const owner = lane >= 0 ? lane : run.lanes.length + run.events.process[event];
    const list = model.list(owner, run.events.kind[event]);
    let place = lowerBound(list.times, run.events.time[event], list.from, list.to);
    while (place < list.to && list.order[place] !== event) place++;
    const next = place + by;
    if (next >= list.from && next < list.to) app.select({ event: list.order[next] }, true);
    else say('There is no further event of this kind here.');
  };
  const trouble = (by) => {
    const list = model.notable.trouble;
    if (list.to === 0) { say('Nothing was lost, refused or sent again.'); return; }
    const at = app.selected.event >= 0 ? run.events.time[app.selected.event] : by > 0 ? -1 : Infinity;
    let place = lowerBound(list.times, at, 0, list.to);
    const same = list.order.indexOf(app.selected.event);
    if (same >= 0) place = by > 0 ? same + 1 : same - 1; else if (by < 0) place -= 1;
    app.select({ event: list.order[(place + list.to) % list.to] }, true);
  };

  // ---- search

  const runSearch = (text) => {
    app.found = { at: -1, ...search(model, text) };
    byId('found').textContent = text.trim() === '' ? '' : app.found.count === 0 ? 'nothing found' : counted(app.found.count, 'match', 'matches');
    invalidate();
    return app.found.count;
  };
  const goToMatch = (by) => {
    const { found } = app;
    if (found.count === 0) return;
    if (found.at < 0) {
      const from = app.selected.event >= 0 ? run.events.time[app.selected.event] : app.view.from;
      const place = lowerBound(found.list.times, from, 0, found.count);
      found.at = by > 0 ? place % found.count : (place - 1 + found.count) % found.count;
    } else {
      found.at = (found.at + by + found.count) % found.count;
    }
    byId('found').textContent = `${grouped(found.at + 1)} of ${grouped(found.count)}`;
    app.select({ event: found.list.order[found.at] }, true);
  };
  byId('search').addEventListener('submit', (event) => { event.preventDefault(); });
  let typing = 0;
  byId('query').addEventListener('input', () => {
    clearTimeout(typing);
    typing = setTimeout(() => runSearch(byId('query').value), run.events.count > 200000 ? 250 : 60);
  });
  byId('query').addEventListener('keydown', (key) => {
    if (key.key === 'Enter') {
      key.preventDefault();
      clearTimeout(typing);
      if (app.found.text !== byId('query').value) runSearch(byId('query').value);
      goToMatch(key.shiftKey ? -1 : 1);
    } else if (key.key === 'Escape') {
      byId('query').value = '';
      runSearch('');
      stage.focus();
    }
    key.stopPropagation();
  });
  byId('next').addEventListener('click', () => goToMatch(1));
  byId('previous').addEventListener('click', () => goToMatch(-1));

  // ---- views

  app.show = (name) => {
    app.viewName = name;
    for (const [key, view] of Object.entries(app.views)) {
      view.hidden = key !== name;
      const tab = byId(`tab-${key}`);
      tab.setAttribute('aria-selected', key === name ? 'true' : 'false');
      tab.tabIndex = key === name ? 0 : -1;
    }
    if (name === 'latency') showLatency(app);
    if (name === 'events') showEvents(app);
    if (name === 'timeline') {
      resize();
      if (revealLater) app.select({ ...app.selected }, true);
      revealLater = false;
    }
    invalidate();
  };
  const tabs = ['timeline', 'latency', 'events'];
  tabs.forEach((name, index) => {
    const tab = byId(`tab-${name}`);
    tab.addEventListener('click', () => app.show(name));
    tab.addEventListener('keydown', (key) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[key.key];
      if (!by) return;
      const next = tabs[(index + by + tabs.length) % tabs.length];
      app.show(next);
      byId(`tab-${next}`).focus();
      key.preventDefault();
      key.stopPropagation();
    });
  });
  const toggleFilters = () => {
    const filters = byId('filters');
    filters.hidden = !filters.hidden;
    byId('filter-button').setAttribute('aria-expanded', filters.hidden ? 'false' : 'true');
    if (!filters.hidden) {
      showFilters(app);
      const first = filters.querySelector('input');
      if (first) first.focus();
    }
    resize();
  };
  byId('filter-button').addEventListener('click', toggleFilters);
  app.filtered = () => {
    const some = app.options.hiddenKinds.size + app.options.hiddenProcesses.size + app.options.hiddenLanes.size;
    byId('filter-button').textContent = some > 0 ? `Filter (${some} hidden)` : 'Filter';
    relayout();
    changed();
  };
  byId('help-button').addEventListener('click', () => showHelp(byId('help')));
  byId('zoom-in').addEventListener('click', () => zoom(ZOOM_STEP));
  byId('zoom-out').addEventListener('click', () => zoom(1 / ZOOM_STEP));
  byId('zoom-fit').addEventListener('click', fit);
  const busy = () => setView(model.busy.from, model.busy.to);
  byId('zoom-busy').addEventListener('click', busy);
  document.querySelector('.skip').addEventListener('click', (event) => {
    event.preventDefault();
    app.show('events');
    focusRow(app.views.events, 0);
  });

  // ---- keys

  const fold = () => {
    const row = app.layout.rows[app.focusRow];
    const lane = row ? row.lane ?? (row.lanes && row.lanes[0]) : app.selected.lane >= 0 ? app.selected.lane : undefined;
    if (lane === undefined) return;
    const pair = connections(run).find((some) => some.includes(lane));
    const set = app.options.collapsed;
    if (set.has(pair[0])) set.delete(pair[0]); else set.add(pair[0]);
    relayout();
  };
  const focusNext = (by) => {
    const { rows } = app.layout;
    let at = app.focusRow;
    do { at += by; } while (rows[at] && (rows[at].type === 'section' || rows[at].type === 'gap'));
    if (!rows[at]) return;
    app.focusRow = at;
    const row = rows[at];
    revealRow((some) => some === row);
    if (row.type === 'lane' || row.type === 'collapsed') app.select({ lane: row.lane ?? row.lanes[0] });
    if (row.type === 'region') app.select({ region: row.region });
    if (row.type === 'program') { app.select({}); say(processText(run, row.process)); }
    invalidate();
  };
  const keys = {
    ArrowLeft: () => pan(-0.12), ArrowRight: () => pan(0.12), a: () => pan(-0.12), d: () => pan(0.12),
    ArrowUp: () => focusNext(-1), ArrowDown: () => focusNext(1), PageUp: () => { stage.scrollTop -= app.box.height * 0.8; }, PageDown: () => { stage.scrollTop += app.box.height * 0.8; },
    '+': () => zoom(ZOOM_STEP), '=': () => zoom(ZOOM_STEP), w: () => zoom(ZOOM_STEP), '-': () => zoom(1 / ZOOM_STEP), s: () => zoom(1 / ZOOM_STEP),
    Home: fit, 0: fit, b: busy, '.': () => app.neighbour(1), ',': () => app.neighbour(-1), e: () => trouble(1), E: () => trouble(-1),
    n: () => goToMatch(1), N: () => goToMatch(-1), '/': () => byId('query').focus(), '?': () => showHelp(byId('help')), f: toggleFilters, c: fold,
    t: () => { app.show('events'); focusRow(app.views.events, 0); }, l: () => app.show('latency'), g: () => { app.show('timeline'); stage.focus(); },
    m: () => { if (app.selected.message >= 0) app.select({ message: app.selected.message }, true); },
    o: () => { const { event } = app.selected; if (event >= 0 && run.events.partner[event] > 0) app.select({ event: run.events.partner[event] - 1 }, true); },
    z: () => { if (app.selected.message >= 0) app.zoomToMessage(app.selected.message); },
    Enter: () => { if (app.selected.event >= 0 || app.selected.message >= 0 || app.selected.lane >= 0) app.inspector.focus(); },
    Escape: () => { app.select({}); stage.focus(); },
  };
  document.addEventListener('keydown', (key) => {
    if (key.ctrlKey || key.metaKey || key.altKey || byId('help').open) return;
    const inField = key.target instanceof HTMLInputElement;
    if (inField && key.key !== 'Escape') return;
    const scrolls = key.target !== stage && key.target !== document.body && /^(Arrow|Page|Home|Enter)/.test(key.key);
    if (scrolls || !Object.hasOwn(keys, key.key)) return;
    keys[key.key]();
    key.preventDefault();
  });
  stage.addEventListener('focus', invalidate);
  stage.addEventListener('blur', invalidate);

  // ---- mouse and touch

  stage.addEventListener('scroll', invalidate);
  stage.addEventListener('wheel', (wheel) => {
    const unit = wheel.deltaMode === 1 ? 18 : 1;
    if (wheel.ctrlKey || wheel.metaKey || (Math.abs(wheel.deltaY) > Math.abs(wheel.deltaX) && !wheel.shiftKey && app.layout.height + TOP <= app.box.height)) {
      wheel.preventDefault();
      const x = Math.max(app.gutter, wheel.offsetX);
      zoomAt(app.view.from + (x - app.gutter) / app.scale, Math.exp(-wheel.deltaY * unit * (wheel.ctrlKey ? 0.006 : 0.0022)));
    } else if (wheel.shiftKey || Math.abs(wheel.deltaX) > Math.abs(wheel.deltaY)) {
      wheel.preventDefault();
      const by = (wheel.deltaX || wheel.deltaY) * unit / app.scale;
      setView(app.view.from + by, app.view.to + by);
    }
  }, { passive: false });

  const touches = new Map();
  let drag = null;
  const at = (event) => { const box = stage.getBoundingClientRect(); return { x: event.clientX - box.left, y: event.clientY - box.top }; };
  stage.addEventListener('pointerdown', (event) => {
    if (event.button !== 0 || event.offsetX > stage.clientWidth) return;
    const point = at(event);
    touches.set(event.pointerId, point);
    stage.setPointerCapture(event.pointerId);
    if (event.shiftKey && point.x > app.gutter) app.band = { from: point.x, to: point.x };
    drag = { ...point, moved: false, view: app.view, scroll: stage.scrollTop, touches: touches.size };
  });
  stage.addEventListener('pointermove', (event) => {
    const point = at(event);
    app.pointer = point;
    if (app.band) {
      app.band.to = Math.max(app.gutter, point.x);
    } else if (touches.size === 2 && touches.has(event.pointerId)) {
      const before = [...touches.values()];
      touches.set(event.pointerId, point);
      const after = [...touches.values()];
      const [was, is] = [before, after].map(([a, b]) => Math.max(8, Math.hypot(a.x - b.x, a.y - b.y)));
      zoomAt(app.view.from + ((after[0].x + after[1].x) / 2 - app.gutter) / app.scale, is / was);
      drag = null;
    } else if (drag && touches.has(event.pointerId)) {
      const dx = point.x - drag.x;
      if (drag.moved || Math.hypot(dx, point.y - drag.y) > 4) {
        drag.moved = true;
        stage.classList.add('dragging');
        byId('tooltip').hidden = true;
        stage.scrollTop = drag.scroll - (point.y - drag.y);
        setView(drag.view.from - dx / app.scale, drag.view.to - dx / app.scale);
      }
    } else {
      hover(point);
    }
    invalidate();
  });
  const release = (event) => {
    touches.delete(event.pointerId);
    stage.classList.remove('dragging');
    if (app.band) {
      const [x0, x1] = [Math.min(app.band.from, app.band.to), Math.max(app.band.from, app.band.to)];
      app.band = null;
      if (x1 - x0 > 4) setView(app.view.from + (x0 - app.gutter) / app.scale, app.view.from + (x1 - app.gutter) / app.scale);
    } else if (drag && !drag.moved && event.type === 'pointerup') {
      click(at(event));
    }
    drag = null;
    invalidate();
  };
  stage.addEventListener('pointerup', release);
  stage.addEventListener('pointercancel', release);
  stage.addEventListener('pointerleave', () => { app.pointer = null; byId('tooltip').hidden = true; invalidate(); });
  const click = (point) => {
    const shape = shapeAt(app, point.x, point.y);
    if (!shape) { app.select({}); return; }
    if (shape.event >= 0) app.select({ event: shape.event });
    else if (shape.message >= 0) app.select({ message: shape.message });
    else if (shape.region >= 0) app.select({ region: shape.region });
    else if (shape.lane >= 0) app.select({ lane: shape.lane });
  };
  app.click = click;
  stage.addEventListener('dblclick', (event) => { if (at(event).x > app.gutter) zoomAt(app.view.from + (at(event).x - app.gutter) / app.scale, 3); });
  const hover = (point) => {
    const shape = shapeAt(app, point.x, point.y);
    const tooltip = byId('tooltip');
    stage.classList.toggle('over', shape !== null && shape !== undefined);
    const text = !shape ? '' : shape.event >= 0 ? eventLine(model, shape.event)
      : shape.message >= 0 ? `${messageTitle(run, shape.message)} · wr_id ${run.messages.wrId[shape.message]} · ${latencyText(shape.message)}` : '';
    tooltip.hidden = text === '';
    tooltip.textContent = text;
    if (text !== '') {
      const left = Math.min(point.x + 14, app.box.width - Math.min(380, tooltip.offsetWidth) - 8);
      const below = point.y + 18 + tooltip.offsetHeight < app.box.height;
      tooltip.style.left = `${Math.max(4, left)}px`;
      tooltip.style.top = `${below ? point.y + 16 : point.y - tooltip.offsetHeight - 10}px`;
    }
  };
  const latencyText = (message) => {
    const latency = latencyOf(run, message);
    const status = nameText(run, run.messages.status[message]);
    return [latency >= 0 ? duration(latency) : '', status || 'not completed'].filter(Boolean).join(' · ');
  };

  const overviewTime = (event) => {
    const box = app.overview.getBoundingClientRect();
    return (event.clientX - box.left) / box.width * model.end;
  };
  let brush = null;
  app.overview.addEventListener('pointerdown', (event) => {
    app.overview.setPointerCapture(event.pointerId);
    const time = overviewTime(event);
    const inside = time > app.view.from && time < app.view.to && app.view.to - app.view.from < model.end * 0.95;
    brush = { time, view: app.view, inside };
    if (!inside) brush.from = time;
  });
  app.overview.addEventListener('pointermove', (event) => {
    if (!brush) return;
    const time = overviewTime(event);
    if (brush.inside) setView(brush.view.from + time - brush.time, brush.view.to + time - brush.time);
    else if (Math.abs(time - brush.from) > model.end * 0.004) setView(Math.min(brush.from, time), Math.max(brush.from, time));
  });
  app.overview.addEventListener('pointerup', (event) => {
    if (brush && !brush.inside && Math.abs(overviewTime(event) - brush.from) <= model.end * 0.004 && app.view.to - app.view.from < model.end * 0.95) {
      const half = (app.view.to - app.view.from) / 2;
      setView(brush.from - half, brush.from + half);
    }
    brush = null;
  });

  // ---- the outside

  const repaint = () => { app.theme = readTheme(); invalidate(); };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', repaint);
  new ResizeObserver(resize).observe(stage);
  const printing = (on) => {
    app.printing = on;
    if (on) {
      // Paper is light, whatever the screen is.
      for (const rule of document.styleSheets[0].cssRules) if (rule.selectorText === ':root') { app.theme = lightTheme(rule); break; }
      resize();
      draw();
    } else {
      repaint();
      resize();
    }
  };
  addEventListener('beforeprint', () => printing(true));
  addEventListener('afterprint', () => printing(false));

  document.title = `${plain(run.title) || 'A run'} · ubiverbs`;
  byId('title').textContent = plain(run.title) || 'A run';
  const day = timeOfDay(run, 0);
  byId('subtitle').textContent = [day.slice(0, 19), counted(run.events.count, 'event', 'events'), duration(model.end), plain(run.clock)].filter(Boolean).join('  ·  ');
  showNotes(run);
  showLegend();
  showInspector(app);
  app.layout = buildRows(model, { ...app.options, room: 0 });
  resize();
  setView(-margin(), model.end + margin());
  draw();
  return inspection(app, { runSearch, goToMatch, setView, draw, fit, unpackedAfter });
}

function lightTheme(rule) {
  return Object.fromEntries(COLOURS.map((name) => [name, rule.style.getPropertyValue(`--${name}`).trim()]));
}

// What tests, and people at the console, may ask: `window.ubiverbs`. docs/view.md describes it.
function inspection(app, { runSearch, goToMatch, setView, draw, fit, unpackedAfter }) {
  const { model } = app;
  const { run } = model;
  const describe = (event) => ({
    event, time: run.events.time[event], kind: kindText(run, event), name: nameText(run, run.events.name[event]),
    text: nameText(run, run.events.text[event]), process: run.events.process[event], lane: run.events.lane[event] - 1,
    qpn: run.events.lane[event] > 0 ? run.lanes[run.events.lane[event] - 1].qpn : null, message: run.events.message[event] - 1,
    partner: run.events.partner[event] - 1, flags: run.events.flags[event],
    fields: Object.fromEntries(fieldsOf(model, event).map((field) => [field.name, valueText(run, field)])),
  });
  return Object.freeze({
    counts: () => ({ events: run.events.count, messages: run.messages.count, lanes: run.lanes.length, processes: run.processes.length, end: model.end }),
    opened: () => ({ unpacked: unpackedAfter, drawn: performance.now() }),
    view: () => ({ ...app.view, scroll: app.scroll, name: app.viewName }),
    rows: () => app.layout.rows.map((row) => ({ type: row.type, lane: row.lane ?? -1, lanes: row.lanes ? [...row.lanes] : [], process: row.process ?? -1, region: row.region ?? -1 })),
    visible: () => {
      draw();
      return {
        ...app.drawn,
        arrows: app.arrows.map(({ event, style, x0, y0, x1, y1, open }) => ({ event, style, x0, y0, x1, y1, open: open === true })),
        bars: app.drawn.bars, marks: app.drawn.marks, sums: app.drawn.sums,
      };
    },
    event: describe,
    message: (message) => ({
      wrId: String(run.messages.wrId[message]), title: messageTitle(run, message), status: nameText(run, run.messages.status[message]),
      lane: run.messages.lane[message], latency: latencyOf(run, message), events: Array.from(model.packetsOf(message)),
      steps: Object.fromEntries(STEP_WORDS.map((word, step) => [word, stepTime(run, message, step)])),
    }),
    selected: () => ({ ...app.selected }),
    select: (what) => app.select(what, true),
    click: (x, y) => app.click({ x, y }),
    search: runSearch,
    next: () => { goToMatch(1); return app.selected.event; },
    zoom: setView,
    fit,
    show: app.show,
    frames: () => app.frames.slice(),
    draw: () => { const begin = performance.now(); draw(); return performance.now() - begin; },
  });
}

async function open() {
  const holder = document.getElementById('run');
  const text = holder.textContent;
  holder.remove();
  const run = await unpack(text);
  return start(run, performance.now());
}

open().then((api) => { window.ubiverbs = api; }, (problem) => {
  document.title = 'A run that cannot be shown';
  document.body.replaceChildren(element('p', { class: 'failure', role: 'alert' }, `This run cannot be shown: ${problem.message}`));
  window.ubiverbs = { problem: problem.message };
});

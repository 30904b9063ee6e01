// Search: `wr_id:7 psn:100 text`, all of which must fit. Names are compared once, events by number.

const SEARCH_KEYS = ['wr_id', 'qp', 'psn', 'key', 'status', 'kind'];
const KEY_FIELDS = ['rkey', 'lkey', 'key'];

function parseQuery(text) {
  const words = text.trim().split(/\s+/).filter(Boolean);
  return words.map((word) => {
    const match = /^([a-z_]+)[:=](.+)$/i.exec(word);
    const key = match && SEARCH_KEYS.includes(match[1].toLowerCase()) ? match[1].toLowerCase() : 'any';
    const value = key === 'any' ? word : match[2];
    return { key, text: value.toLowerCase(), number: parseNumber(value) };
  });
}

function parseNumber(text) {
  if (!/^(0x[0-9a-f]+|\d+)$/i.test(text) || text.length > 20) return null;
  return BigInt(text);
}

// All events that fit, in order of time.
function search(model, text) {
  const { run } = model;
  const { events, messages } = run;
  const terms = parseQuery(text);
  const marked = new Uint8Array(events.count);
  if (terms.length === 0) return { count: 0, marked, list: { order: new Uint32Array(0), times: new Float64Array(0), from: 0, to: 0 }, text };
  const tests = terms.map((term) => termTest(model, term));
  const order = [];
  for (let event = 0; event < events.count; event++) {
    if (tests.every((test) => test(event))) {
      marked[event] = 1;
      order.push(event);
    }
  }
  return {
    count: order.length, marked, text,
    list: { order: Uint32Array.from(order), times: Float64Array.from(order, (event) => events.time[event]), from: 0, to: order.length },
  };
}

function termTest(model, { key, text, number }) {
  const { run } = model;
  const { events, messages } = run;
  const never = () => false;
  const small = number === null ? null : Number(number);
  const wide = number !== null && messages.wrId instanceof BigUint64Array ? number : small;
  const fieldTests = (names) => run.shapes.map((fields) => fields.filter((field) => names.includes(field.name))
    .map((field) => ({ values: field.values, wanted: field.values instanceof BigUint64Array ? number : small })));
  const holds = (tests, event) => {
    for (const { values, wanted } of tests[events.shape[event]]) if (values[events.row[event]] === wanted) return true;
    return false;
  };

  const byWrId = number === null ? never : (() => {
    const own = fieldTests(['wr_id']);
    return (event) => (events.message[event] > 0 && messages.wrId[events.message[event] - 1] === wide) || holds(own, event);
  })();
  const byQp = number === null ? never : (() => {
    const fits = Uint8Array.from(run.lanes, (lane) => (lane.qpn === small ? 1 : 0));
    const named = fieldTests(['dest_qp', 'src_qp', 'qpn']);
    return (event) => (events.lane[event] > 0 && fits[events.lane[event] - 1] === 1) || holds(named, event);
  })();
  const byPsn = number === null ? never : (event) => {
    const fields = model.fieldOf[events.shape[event]];
    const psn = fields.get('psn');
    if (psn === undefined) return false;
    const row = events.row[event];
    const first = Number(psn.values[row]);
    const packets = fields.get('packets');
    return small >= first && small < first + Math.max(1, packets === undefined ? 1 : Number(packets.values[row]));
  };
  const byKey = number === null ? never : (() => {
    const tests = fieldTests(KEY_FIELDS);
    return (event) => holds(tests, event);
  })();
  const namesThatFit = () => Uint8Array.from(run.names, (name) => (name.toLowerCase().includes(text) ? 1 : 0));
  const byStatus = () => {
    const fits = namesThatFit();
    const tests = run.shapes.map((fields) => fields.filter((field) => field.name === 'status' && field.format === FIELD_FORMAT.NAME));
    return (event) => {
      if (events.kind[event] === KIND.COMPLETION && fits[events.name[event]] === 1) return true;
      const message = events.message[event];
      if (message > 0 && fits[messages.status[message - 1]] === 1 && messages.status[message - 1] > 0) return true;
      return tests[events.shape[event]].some((field) => fits[field.values[events.row[event]]] === 1);
    };
  };
  const byKind = () => (event) => kindText(run, event).toLowerCase().includes(text);
  const byText = () => {
    const fits = namesThatFit();
    fits[0] = 0;
    const laneFits = Uint8Array.from(run.processes, (process) => fits[process.name]);
    const named = run.shapes.map((fields) => fields.filter((field) => field.format === FIELD_FORMAT.NAME));
    const kinds = byKind();
    return (event) => fits[events.name[event]] === 1 || fits[events.text[event]] === 1 || laneFits[events.process[event]] === 1
      || named[events.shape[event]].some((field) => fits[field.values[events.row[event]]] === 1) || kinds(event);
  };
  switch (key) {
    case 'wr_id': return byWrId;
    case 'qp': return byQp;
    case 'psn': return byPsn;
    case 'key': return byKey;
    case 'status': return byStatus();
    case 'kind': return byKind();
    default: {
      if (number === null) return byText();
      return (event) => byWrId(event) || byQp(event) || byPsn(event) || byKey(event);
    }
  }
}

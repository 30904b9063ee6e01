// The run, unpacked: base64, then deflate, then a header in JSON and columns of numbers. `src/packed.rs` is the other half.

const LAYOUT_VERSION = 1;

async function unpack(text) {
  if (typeof DecompressionStream !== 'function') {
    throw new Error('This browser is older than 2023 and cannot unpack the run: DecompressionStream is missing.');
  }
  const stream = new Blob([fromBase64(text)]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (bytes.length < 4) throw new Error('This file holds no run: it was cut off.');
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  if (header.version !== LAYOUT_VERSION) throw new Error(`This file holds a run of version ${header.version}.`);
  return readRun(header, bytes.subarray(4 + length));
}

function fromBase64(text) {
  if (typeof Uint8Array.fromBase64 === 'function') return Uint8Array.fromBase64(text);
  const binary = atob(text.trim());
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

// A column that is one number everywhere is read as that, so that it costs nothing.
function makeColumn(column) {
  switch (column.width) {
    case 1: return new Uint8Array(column.count);
    case 2: return new Uint16Array(column.count);
    case 4: return new Uint32Array(column.count);
    case 8: return new Float64Array(column.count);
    case 9: return new BigUint64Array(column.count);
    default: {
      const big = BigInt(column.constant);
      if (big > 0xFFFFFFFFn) {
        return big < 1n << 51n ? new Float64Array(column.count).fill(Number(big)) : new BigUint64Array(column.count).fill(big);
      }
      const number = Number(big);
      const made = number < 256 ? new Uint8Array(column.count) : new Uint32Array(column.count);
      return number === 0 ? made : made.fill(number);
    }
  }
}

function readColumn(column, bytes, groups) {
  const values = makeColumn(column);
  if (column.width === 0) return values;
  if (column.width === 9) return readBigColumn(values, column, bytes, groups);
  let at = column.offset;
  const before = column.grouped ? new Float64Array(1 + maximum(groups)) : null;
  let last = 0;
  for (let index = 0; index < values.length; index++) {
    let byte = bytes[at++];
    let difference;
    if (byte < 0x80) {
      difference = (byte >>> 1) ^ -(byte & 1);
    } else {
      let number = byte & 0x7F;
      let scale = 128;
      do {
        byte = bytes[at++];
        number += (byte & 0x7F) * scale;
        scale *= 128;
      } while (byte & 0x80);
      difference = number % 2 === 0 ? number / 2 : -(number + 1) / 2;
    }
    if (before === null) {
      last += difference;
    } else {
      const group = groups[index];
      last = before[group] + difference;
      before[group] = last;
    }
    values[index] = last;
  }
  return values;
}

function readBigColumn(values, column, bytes, groups) {
  let at = column.offset;
  const before = new BigUint64Array(column.grouped ? 1 + maximum(groups) : 1);
  for (let index = 0; index < values.length; index++) {
    let number = 0n;
    let shift = 0n;
    let byte;
    do {
      byte = bytes[at++];
      number |= BigInt(byte & 0x7F) << shift;
      shift += 7n;
    } while (byte & 0x80);
    const group = column.grouped ? groups[index] : 0;
    const difference = number & 1n ? -((number + 1n) >> 1n) : number >> 1n;
    before[group] = BigInt.asUintN(64, before[group] + difference);
    values[index] = before[group];
  }
  return values;
}

function maximum(numbers) {
  let most = 0;
  for (let index = 0; index < numbers.length; index++) if (numbers[index] > most) most = numbers[index];
  return most;
}

function readRun(header, bytes) {
  const read = (column, groups) => readColumn(column, bytes, groups);
  const { events: e, messages: m, accesses: a } = header;
  const lane = read(e.lane);
  const events = { count: e.time.count, time: read(e.time), lane };
  for (const name of ['duration', 'process', 'kind', 'flags', 'name', 'text', 'message', 'partner', 'shape']) {
    events[name] = read(e[name], lane);
  }
  // An event's place among those of its shape is its row in the columns of the shape's fields.
  const counts = new Uint32Array(header.shapes.length);
  events.row = new Uint32Array(events.count);
  for (let index = 0; index < events.count; index++) events.row[index] = counts[events.shape[index]]++;
  const members = Array.from(counts, (count) => new Uint32Array(count));
  for (let index = 0; index < events.count; index++) members[events.shape[index]][events.row[index]] = lane[index];
  const shapes = header.shapes.map((fields, shape) => fields.map(([name, format, column]) => (
    { name, format, values: read(column, members[shape]) })));

  const messageLane = read(m.lane);
  const messages = { count: m.lane.count, lane: messageLane };
  for (const [to, from] of [['wrId', 'wr_id'], ['queue'], ['opcode'], ['bytes'], ['status'], ['partner'], ['first'], ['last']]) {
    messages[to] = read(m[from || to], messageLane);
  }
  messages.times = m.times.map((column) => read(column, messageLane));
  const region = read(a.region);
  const accesses = { count: a.event.count, region, event: read(a.event) };
  for (const name of ['offset', 'length', 'write']) accesses[name] = read(a[name], region);
  return {
    title: header.title,
    origin: BigInt(header.origin),
    dated: header.dated,
    clock: header.clock,
    clockError: header.clock_error,
    notes: header.notes,
    names: header.names,
    processes: header.processes,
    lanes: header.lanes,
    regions: header.regions.map((region) => ({ ...region, address: BigInt(region.address) })),
    events, shapes, messages, accesses,
  };
}

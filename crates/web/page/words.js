// Numbers and events in words. All of it ends as text, never as HTML.

const KIND_WORDS = [
  ['Call', 'calls'], ['Work request posted', 'posts'], ['State', 'states'], ['Packet sent', 'packets sent'],
  ['Packet arrived', 'packets that arrived'], ['Packet dropped', 'packets dropped'], ['Going back', 'retries'],
  ['Refusal', 'refusals'], ['Completion', 'completions'], ['Poll', 'polls'], ['Asynchronous event', 'asynchronous events'],
  ['Finding', 'findings'], ['Injected failure', 'injected failures'], ['Engine', 'engine activity'],
  ['Memory access', 'memory accesses'], ['Window, rate or timer', 'windows, rates and timers'],
  ['Span', 'spans of the application'], ['Other', 'other events'],
];
const STEP_WORDS = ['posted', 'sent', 'arrived', 'placed', 'completed', 'polled'];
const FIELD_FORMAT = { NUMBER: 0, HEX: 1, NAME: 2, FLAG: 3, DURATION: 4 };

// Control characters and those that turn the direction of a text are shown as what they are.
function plain(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, (character) => {
    const code = character.codePointAt(0);
    return code < 0x20 ? String.fromCodePoint(0x2400 + code) : '\u2423';
  });
}

const nameText = (run, name) => plain(run.names[name] || '');

function grouped(number) {
  return String(number).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
}

function counted(number, one, many) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}

// A duration in the unit that leaves one to three digits before the point.
function duration(nanoseconds) {
  const size = Math.abs(nanoseconds);
  if (size < 1e3) return `${trim(nanoseconds, size < 10 ? 1 : 0)} ns`;
  if (size < 1e6) return `${trim(nanoseconds / 1e3, size < 1e4 ? 2 : 1)} µs`;
  if (size < 1e9) return `${trim(nanoseconds / 1e6, size < 1e7 ? 2 : 1)} ms`;
  if (size < 120e9) return `${trim(nanoseconds / 1e9, size < 1e10 ? 2 : 1)} s`;
  const minutes = Math.floor(size / 60e9);
  const sign = nanoseconds < 0 ? '-' : '';
  if (minutes < 120) return `${sign}${minutes} min ${Math.floor(size / 1e9 - minutes * 60)} s`;
  return `${sign}${grouped(Math.floor(minutes / 60))} h ${minutes % 60} min`;
}

function trim(number, digits) {
  const text = number.toFixed(digits);
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

// A moment, to the nanosecond, from the beginning of the run.
function moment(nanoseconds) {
  const sign = nanoseconds < 0 ? '-' : '';
  const whole = Math.round(Math.abs(nanoseconds));
  const seconds = Math.floor(whole / 1e9);
  const rest = String(whole - seconds * 1e9).padStart(9, '0');
  return `${sign}${grouped(seconds)}.${rest.slice(0, 3)}\u202f${rest.slice(3, 6)}\u202f${rest.slice(6)} s`;
}

// The time of day of a moment, in the reader's zone.
function timeOfDay(run, nanoseconds) {
  if (!run.dated) return '';
  const at = run.origin + BigInt(Math.round(nanoseconds));
  const date = new Date(Number(at / 1000000n));
  if (Number.isNaN(date.getTime())) return '';
  const pad = (number, digits) => String(number).padStart(digits, '0');
  const rest = pad(Number(at % 1000000000n), 9);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1, 2)}-${pad(date.getDate(), 2)} `
    + `${pad(date.getHours(), 2)}:${pad(date.getMinutes(), 2)}:${pad(date.getSeconds(), 2)}.${rest}`;
}

function sizeText(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  const units = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
  return `${trim(value, value < 10 ? 1 : 0)} ${units[unit]}`;
}

function rateText(bytesPerNanosecond) {
  const bits = bytesPerNanosecond * 8e9;
  if (bits >= 1e9) return `${trim(bits / 1e9, 1)} Gbit/s`;
  if (bits >= 1e6) return `${trim(bits / 1e6, 1)} Mbit/s`;
  return `${trim(bits / 1e3, 1)} kbit/s`;
}

const hex = (number) => `0x${BigInt(number).toString(16)}`;

function valueText(run, field) {
  switch (field.format) {
    case FIELD_FORMAT.HEX: return hex(field.value);
    case FIELD_FORMAT.NAME: return nameText(run, Number(field.value));
    case FIELD_FORMAT.FLAG: return Number(field.value) === 0 ? 'no' : 'yes';
    case FIELD_FORMAT.DURATION: return duration(Number(field.value));
    default: return grouped(field.value);
  }
}

function processText(run, process) {
  const known = run.processes[process];
  return known === undefined ? 'no process' : `${nameText(run, known.name) || 'process'} ${known.pid}`;
}

const laneText = (run, lane) => `QP ${hex(run.lanes[lane].qpn)}`;

function kindText(run, event) {
  const flags = run.events.flags[event];
  const kind = run.events.kind[event];
  if (kind === KIND.SENT) {
    if (flags & FLAG.LOST) return 'Packet lost';
    if (flags & FLAG.AGAIN) return 'Packet sent again';
  }
  if (kind === KIND.RECEIVED && flags & FLAG.DUPLICATE) return 'Packet arrived twice';
  return (KIND_WORDS[kind] || KIND_WORDS[KIND.OTHER])[0];
}

// One line that says what an event is: the table's, the live region's and the tooltip's.
function eventLine(model, event) {
  const { run } = model;
  const parts = [kindText(run, event)];
  const name = nameText(run, run.events.name[event]);
  if (name) parts.push(name);
  if (hasField(model, event, 'psn')) parts.push(`PSN ${numberOf(model, event, 'psn')}`);
  const message = run.events.message[event];
  if (message > 0) parts.push(`wr_id ${run.messages.wrId[message - 1]}`);
  if (run.events.duration[event] > 0) parts.push(duration(run.events.duration[event]));
  const text = nameText(run, run.events.text[event]);
  if (text) parts.push(text);
  return parts.join(' · ');
}

function messageTitle(run, message) {
  const opcode = nameText(run, run.messages.opcode[message]) || (run.messages.queue[message] === 1 ? 'RECV' : 'work');
  return `${opcode} ${sizeText(Number(run.messages.bytes[message]))}`;
}

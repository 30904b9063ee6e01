//! A virtual machine without an operating system: a ROM of ours fills most of the memory with a pattern and then keeps
//! writing to a part of it. What the memory must contain is known at any moment, so that a copy can be judged without
//! the original.

use std::ops::Range;

/// Memory of the machine, in bytes.
pub const GUEST_MEMORY_BYTES: usize = 32 << 20;

/// Written once, each word a product of its address.
const FILLED: Range<usize> = 1 << 20..20 << 20;

/// Written again and again, each word the sum of its address and the number of the round.
const BUSY: Range<usize> = 20 << 20..24 << 20;

/// The number of rounds that are done.
pub const ROUNDS: usize = 0x1000;

/// What addresses are multiplied with.
const FACTOR: u32 = 0x9e37_79b1;

/// Where the machine has the ROM.
const ROM: u32 = 0xffff_0000;

/// Places in the ROM.
const IN_32_BITS: usize = 0x40;
const SEGMENTS: usize = 0x100;
const SEGMENTS_SIZE: u16 = 24;
const SEGMENTS_POINTER: usize = 0x120;
const RESET: usize = 0xfff0;

/// What the machine starts with, instead of a BIOS.
pub fn rom() -> Vec<u8> {
    let mut rom = vec![0; 1 << 16];
    let mut put = |at: usize, bytes: &[u8]| rom[at..at + bytes.len()].copy_from_slice(bytes);
    // The processor begins here, with 16 bits: jmp to the ROM's begin.
    put(RESET, &[0xe9, 0x0d, 0x00]);
    // cli; lgdt cs:[SEGMENTS_POINTER]; mov eax, cr0; or al, 1; mov cr0, eax; jmp 8:IN_32_BITS
    let pointer = (SEGMENTS_POINTER as u16).to_le_bytes();
    put(0, &[0xfa, 0x2e, 0x66, 0x0f, 0x01, 0x16, pointer[0], pointer[1]]);
    put(8, &[0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0]);
    let target = (ROM + IN_32_BITS as u32).to_le_bytes();
    put(16, &[0x66, 0xea, target[0], target[1], target[2], target[3], 0x08, 0x00]);
    // None; code and data, each all of the memory.
    put(SEGMENTS + 8, &0x00cf_9a00_0000_ffff_u64.to_le_bytes());
    put(SEGMENTS + 16, &0x00cf_9200_0000_ffff_u64.to_le_bytes());
    put(SEGMENTS_POINTER, &(SEGMENTS_SIZE - 1).to_le_bytes());
    put(SEGMENTS_POINTER + 2, &(ROM + SEGMENTS as u32).to_le_bytes());
    put(IN_32_BITS, &program());
    rom
}

/// Fills, and then writes for ever.
fn program() -> Vec<u8> {
    let mut code = Vec::new();
    let word = |value: usize| (value as u32).to_le_bytes();
    let back = |code: &[u8], to: usize| (to as isize - (code.len() as isize + 2)) as i8 as u8;
    // mov ax, 16; mov ds, ax; mov es, ax; cld; mov edi, FILLED.start
    code.extend([0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8, 0x8e, 0xc0, 0xfc, 0xbf]);
    code.extend(word(FILLED.start));
    let fill = code.len();
    // imul eax, edi, FACTOR; stosd; cmp edi, FILLED.end; jb fill
    code.extend([0x69, 0xc7]);
    code.extend(FACTOR.to_le_bytes());
    code.extend([0xab, 0x81, 0xff]);
    code.extend(word(FILLED.end));
    code.extend([0x72, back(&code, fill)]);
    // xor ebx, ebx
    code.extend([0x31, 0xdb]);
    let round = code.len();
    // inc ebx; mov edi, BUSY.start
    code.extend([0x43, 0xbf]);
    code.extend(word(BUSY.start));
    let busy = code.len();
    // mov eax, edi; add eax, ebx; stosd; cmp edi, BUSY.end; jb busy
    code.extend([0x89, 0xf8, 0x01, 0xd8, 0xab, 0x81, 0xff]);
    code.extend(word(BUSY.end));
    code.extend([0x72, back(&code, busy)]);
    // mov [ROUNDS], ebx; jmp round
    code.extend([0x89, 0x1d]);
    code.extend(word(ROUNDS));
    code.extend([0xeb, back(&code, round)]);
    code
}

/// Whether this is what the memory contains at some moment; answers the number of rounds.
pub fn judge(memory: &[u8]) -> Result<u32, String> {
    if memory.len() != GUEST_MEMORY_BYTES {
        return Err(format!("{} bytes of memory, not {GUEST_MEMORY_BYTES}", memory.len()));
    }
    let words = |range: &Range<usize>| {
        let at = range.clone().step_by(4);
        at.zip(memory[range.clone()].chunks_exact(4))
            .map(|(at, it)| (at, u32::from_le_bytes([it[0], it[1], it[2], it[3]])))
    };
    let (_, rounds) = words(&(ROUNDS..ROUNDS + 4)).next().ok_or("no number of rounds")?;
    if let Some((at, word)) = words(&FILLED).find(|(at, word)| *word != (*at as u32).wrapping_mul(FACTOR)) {
        return Err(format!("{word:#x} at {at:#x}, where the pattern has another word"));
    }
    // The round that is being written, up to some word; from there on the one before it.
    let mut is_new = true;
    for (at, word) in words(&BUSY) {
        let round = word.wrapping_sub(at as u32);
        is_new &= round == rounds.wrapping_add(1);
        if !is_new && round != rounds {
            return Err(format!("round {round} at {at:#x}, after {rounds} rounds"));
        }
    }
    match memory[BUSY.end..].iter().position(|byte| *byte != 0) {
        Some(offset) => Err(format!("a byte at {:#x} that nobody wrote", BUSY.end + offset)),
        None => Ok(rounds),
    }
}

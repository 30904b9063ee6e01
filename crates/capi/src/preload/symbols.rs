//! Where functions are that come after ours in the order of libraries. The dynamic linker's own `dlsym` may allocate
//! memory, and an allocator may call one of our functions before it is ready: so this reads the libraries' tables of
//! symbols itself, and allocates nothing.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// An entry of the dynamic section.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;

/// A version of a symbol that is found only by those who ask for it.
const HIDDEN_VERSION: u16 = 0x8000;

/// What is looked for.
struct Wanted<'a> {
    name: &'a CStr,
    hash: u32,
    /// Our own functions lie in these two: those after the first, and in neither, are meant.
    before: usize,
    own: usize,
    passed: bool,
    found: *mut c_void,
}

/// The function of that name in the first library behind the one that has `before`. That which has `own` is passed
/// over.
pub(super) fn after(name: &CStr, before: usize, own: usize) -> *mut c_void {
    let mut wanted = Wanted { name, hash: hash(name.to_bytes()), before, own, passed: false, found: null_mut() };
    // SAFETY: the function gets what it looks for, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut wanted).cast()) };
    wanted.found
}

/// Where the code of the library is that has this address: start and length.
pub(super) fn code_with(address: usize) -> (usize, usize) {
    unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: libc::size_t, asked: *mut c_void) -> c_int {
        // SAFETY: the dynamic linker passes a description of a loaded object, and what we gave it.
        unsafe {
            let (address, found) = &mut *asked.cast::<(usize, (usize, usize))>();
            for header in headers(object).iter().filter(|header| header.p_flags & libc::PF_X != 0) {
                let range = range(object, header);
                if header.p_type == libc::PT_LOAD && address.wrapping_sub(range.0) < range.1 {
                    *found = range;
                    return 1;
                }
            }
        }
        0
    }
    let mut asked = (address, (0, 0));
    // SAFETY: the function gets the place for its answer, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut asked).cast()) };
    asked.1
}

/// # Safety
/// It is a description of a loaded object.
unsafe fn headers<'a>(object: *const libc::dl_phdr_info) -> &'a [libc::Elf64_Phdr] {
    // SAFETY: the description says where its headers are, and how many.
    unsafe { std::slice::from_raw_parts((*object).dlpi_phdr, usize::from((*object).dlpi_phnum)) }
}

/// # Safety
/// The header is one of the object's.
unsafe fn range(object: *const libc::dl_phdr_info, header: &libc::Elf64_Phdr) -> (usize, usize) {
    // SAFETY: it is a description of a loaded object.
    (unsafe { (*object).dlpi_addr } as usize + header.p_vaddr as usize, header.p_memsz as usize)
}

unsafe extern "C" fn look(object: *mut libc::dl_phdr_info, _: libc::size_t, wanted: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a description of a loaded object, and what we gave it.
    unsafe {
        let wanted = &mut *wanted.cast::<Wanted<'_>>();
        let has = |address: usize| {
            headers(object).iter().filter(|header| header.p_type == libc::PT_LOAD).any(|header| {
                let (start, length) = range(object, header);
                address.wrapping_sub(start) < length
            })
        };
        if has(wanted.before) {
            wanted.passed = true;
        } else if wanted.passed && !has(wanted.own) {
            let dynamic = headers(object).iter().find(|header| header.p_type == libc::PT_DYNAMIC);
            if let Some(header) = dynamic {
                wanted.found = find((*object).dlpi_addr as usize, range(object, header).0 as *const Dynamic, wanted);
            }
        }
        c_int::from(!wanted.found.is_null())
    }
}

/// The hash of names in tables.
fn hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

/// # Safety
/// It is the dynamic section of an object that is loaded there.
unsafe fn find(base: usize, mut dynamic: *const Dynamic, wanted: &Wanted<'_>) -> *mut c_void {
    let (mut strings, mut symbols): (*const c_char, *const libc::Elf64_Sym) = (null(), null());
    let (mut table, mut versions): (*const u32, *const u16) = (null(), null());
    // SAFETY: the linker and the loader have written these tables. The kernel's own library leaves
    // its addresses without the base.
    unsafe {
        while (*dynamic).tag != 0 {
            let value = (*dynamic).value as usize;
            let address = if value < base { base + value } else { value };
            match (*dynamic).tag {
                DT_STRTAB => strings = address as *const c_char,
                DT_SYMTAB => symbols = address as *const libc::Elf64_Sym,
                DT_GNU_HASH => table = address as *const u32,
                DT_VERSYM => versions = address as *const u16,
                _ => {}
            }
            dynamic = dynamic.add(1);
        }
        if strings.is_null() || symbols.is_null() || table.is_null() {
            return null_mut();
        }
        // Numbers of buckets, of the first symbol in them, and of words of a filter; the filter; buckets; hashes.
        let (buckets, first, filter) = (*table, *table.add(1), *table.add(2));
        if buckets == 0 {
            return null_mut();
        }
        let bucket = table.add(4 + filter as usize * 2);
        let hashes = bucket.add(buckets as usize);
        let mut index = *bucket.add((wanted.hash % buckets) as usize);
        while index >= first {
            let known = *hashes.add((index - first) as usize);
            let symbol = &*symbols.add(index as usize);
            let shown = versions.is_null() || *versions.add(index as usize) & HIDDEN_VERSION == 0;
            let is_function = symbol.st_shndx != 0 && symbol.st_info & 15 == 2;
            if known | 1 == wanted.hash | 1
                && is_function
                && shown
                && CStr::from_ptr(strings.add(symbol.st_name as usize)) == wanted.name
            {
                return (base + symbol.st_value as usize) as *mut c_void;
            }
            if known & 1 == 1 {
                break;
            }
            index += 1;
        }
    }
    null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_c_library_are_found_where_the_linker_finds_them() {
        for name in [c"read", c"sendmsg", c"execve", c"epoll_ctl", c"close_range"] {
            // SAFETY: the names are strings.
            let known = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            // This program comes before all libraries.
            assert_eq!(after(name, hash as *const () as usize, 0), known, "{name:?}");
        }
        assert!(after(c"no_such_function", hash as *const () as usize, 0).is_null());
    }

    #[test]
    fn this_code_is_somewhere() {
        let address = hash as *const () as usize;
        let (start, length) = code_with(address);
        assert!(address.wrapping_sub(start) < length);
        assert_eq!(code_with(8), (0, 0));
    }
}

//! A reader of ELF files that goes by segments, as the loader does, since sections may be stripped.

use std::cell::Cell;
use std::fs::File;

use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, pod};

/// An ELF file.
#[derive(Clone, Debug)]
pub(crate) struct Elf {
    pub(crate) bits: u8,
    pub(crate) little_endian: bool,
    pub(crate) machine: u16,
    pub(crate) kind: Kind,
    pub(crate) entry: u64,
    /// The loader that it asks for.
    pub(crate) interpreter: Option<String>,
    /// Set where it is marked as a program although it can be loaded anywhere, as libraries can.
    pub(crate) pie: bool,
    /// The libraries that it asks for.
    pub(crate) libraries: Vec<String>,
    /// The versions of symbols without which the loader refuses it.
    pub(crate) needs: Vec<String>,
    /// The versions of symbols that it has for others.
    pub(crate) defines: Vec<String>,
}

/// The kind of file that the header gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Executable,
    /// A library, or a program that can be loaded anywhere.
    Dynamic,
    Core,
    Other,
}

/// Why a file that begins like ELF cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Parts that it announces lie behind its end.
    Truncated,
    /// It contradicts itself here.
    Malformed(&'static str),
}

impl Elf {
    /// Reads a file that begins with the magic number of ELF.
    pub(crate) fn read(file: &File) -> Result<Self, Fault> {
        let cache = ReadCache::new(file);
        let data = &cache;
        let ident = bytes_at(data, 0, 16)?;
        match ident[4] {
            1 => parse::<FileHeader32<Endianness>>(data),
            2 => parse::<FileHeader64<Endianness>>(data),
            _ => Err(Fault::Malformed("it has neither 32 nor 64 bits")),
        }
    }
}

type Data<'a, 'f> = &'a ReadCache<&'f File>;

fn parse<H: FileHeader<Endian = Endianness>>(data: Data<'_, '_>) -> Result<Elf, Fault> {
    bytes_at(data, 0, size_of::<H>() as u64)?;
    let header = H::parse(data).map_err(|_| Fault::Malformed("its header"))?;
    let endian = header
        .endian()
        .map_err(|_| Fault::Malformed("its byte order"))?;
    for (at, count, size) in [
        (
            header.e_phoff(endian).into(),
            header.e_phnum(endian),
            header.e_phentsize(endian),
        ),
        (
            header.e_shoff(endian).into(),
            header.e_shnum(endian),
            header.e_shentsize(endian),
        ),
    ] {
        let bytes = u64::from(count) * u64::from(size);
        expect_inside(data, at, bytes)?;
    }
    let segments = header
        .program_headers(endian, data)
        .map_err(|_| Fault::Malformed("its program headers"))?;
    let mut found = Elf {
        bits: if header.is_class_64() { 64 } else { 32 },
        little_endian: header.is_little_endian(),
        machine: header.e_machine(endian).0,
        kind: match header.e_type(endian) {
            elf::ET_REL => Kind::Object,
            elf::ET_EXEC => Kind::Executable,
            elf::ET_DYN => Kind::Dynamic,
            elf::ET_CORE => Kind::Core,
            _ => Kind::Other,
        },
        entry: header.e_entry(endian).into(),
        interpreter: None,
        pie: false,
        libraries: vec![],
        needs: vec![],
        defines: vec![],
    };
    // The kernel cuts off the memory of large processes, so a core may well be short.
    if found.kind == Kind::Core {
        return Ok(found);
    }
    for segment in segments {
        let (at, bytes) = segment.file_range(endian);
        expect_inside(data, at, bytes)?;
    }
    for segment in segments {
        let (at, bytes) = segment.file_range(endian);
        match segment.p_type(endian) {
            elf::PT_INTERP => {
                let path = text(data, at, at + bytes, "the path of its loader")?;
                found.interpreter = Some(path);
            }
            elf::PT_DYNAMIC => {
                if bytes > DYNAMIC_BYTES_MAX {
                    return Err(Fault::Malformed("its dynamic section is too long"));
                }
                let entries = segment.data_as_array::<H::Dyn, _>(endian, data);
                let entries = entries.map_err(|_| Fault::Malformed("its dynamic section"))?;
                let memory = Memory {
                    endian,
                    data,
                    segments,
                    left: Cell::new(READS_MAX),
                };
                memory.dynamic(entries, &mut found)?;
            }
            _ => {}
        }
    }
    Ok(found)
}

/// The file as it will lie in memory.
struct Memory<'a, 'f, P> {
    endian: Endianness,
    data: Data<'a, 'f>,
    segments: &'a [P],
    /// Lists are followed by offsets, which lead on in any file, but perhaps through all of it.
    left: Cell<u32>,
}

impl<'a, P: ProgramHeader<Endian = Endianness>> Memory<'a, '_, P> {
    /// Where in the file an address lies.
    fn place(&self, address: u64) -> Result<u64, Fault> {
        let within = |segment: &P| {
            let begin: u64 = segment.p_vaddr(self.endian).into();
            let (at, bytes) = segment.file_range(self.endian);
            let into = address.checked_sub(begin).filter(|into| *into < bytes)?;
            (segment.p_type(self.endian) == elf::PT_LOAD).then_some(at + into)
        };
        self.segments
            .iter()
            .find_map(within)
            .ok_or(Fault::Malformed("an address that it does not load"))
    }

    fn read<T: pod::Pod>(&self, at: u64) -> Result<&'a T, Fault> {
        self.spend()?;
        self.data
            .read_at(at)
            .map_err(|()| Fault::Malformed("the versions of its symbols"))
    }

    fn spend(&self) -> Result<(), Fault> {
        let left = self.left.get().checked_sub(1);
        let left = left.ok_or(Fault::Malformed("it has too many libraries or versions"))?;
        self.left.set(left);
        Ok(())
    }

    fn dynamic<D: Dyn<Endian = Endianness>>(
        &self,
        entries: &[D],
        found: &mut Elf,
    ) -> Result<(), Fault> {
        let value = |tag: elf::DynamicTag| {
            let entry = entries.iter().find(|entry| entry.tag(self.endian) == tag)?;
            Some(entry.val(self.endian))
        };
        let flags = value(elf::DT_FLAGS_1).unwrap_or(0);
        found.pie = flags & elf::DF_1_PIE.0 != 0;
        let Some(strings) = value(elf::DT_STRTAB) else {
            return Ok(());
        };
        let begin = self.place(strings)?;
        let end = begin.saturating_add(value(elf::DT_STRSZ).unwrap_or(0));
        expect_inside(self.data, begin, end - begin)?;
        let name = |offset: u64| {
            self.spend()?;
            text(self.data, begin.saturating_add(offset), end, "a name")
        };
        for entry in entries {
            match entry.tag(self.endian) {
                elf::DT_NULL => break,
                elf::DT_NEEDED => found.libraries.push(name(entry.val(self.endian))?),
                _ => {}
            }
        }
        if let Some(address) = value(elf::DT_VERNEED) {
            self.needs(self.place(address)?, name, &mut found.needs)?;
        }
        if let Some(address) = value(elf::DT_VERDEF) {
            self.defines(self.place(address)?, name, &mut found.defines)?;
        }
        Ok(())
    }

    /// The list of libraries, each with a list of versions.
    fn needs(
        &self,
        mut at: u64,
        name: impl Fn(u64) -> Result<String, Fault>,
        found: &mut Vec<String>,
    ) -> Result<(), Fault> {
        loop {
            let library: &elf::Verneed<Endianness> = self.read(at)?;
            let mut version_at = at.saturating_add(library.vn_aux.get(self.endian).into());
            for _ in 0..library.vn_cnt.get(self.endian) {
                let version: &elf::Vernaux<Endianness> = self.read(version_at)?;
                // The loader only warns when one that is weak is not there.
                let weak = version.vna_flags.get(self.endian);
                if !weak.contains(elf::VER_FLG_WEAK) {
                    found.push(name(version.vna_name.get(self.endian).into())?);
                }
                let next: u64 = version.vna_next.get(self.endian).into();
                version_at = version_at.saturating_add(next);
            }
            match library.vn_next.get(self.endian) {
                0 => return Ok(()),
                next => at = at.saturating_add(next.into()),
            }
        }
    }

    /// The list of versions, each with its name and those that it follows.
    fn defines(
        &self,
        mut at: u64,
        name: impl Fn(u64) -> Result<String, Fault>,
        found: &mut Vec<String>,
    ) -> Result<(), Fault> {
        loop {
            let version: &elf::Verdef<Endianness> = self.read(at)?;
            if version.vd_cnt.get(self.endian) > 0 {
                let name_at = at.saturating_add(version.vd_aux.get(self.endian).into());
                let named: &elf::Verdaux<Endianness> = self.read(name_at)?;
                found.push(name(named.vda_name.get(self.endian).into())?);
            }
            match version.vd_next.get(self.endian) {
                0 => return Ok(()),
                next => at = at.saturating_add(next.into()),
            }
        }
    }
}

// libc.so.6 has about 50 versions, and its dynamic section half a KiB.
const READS_MAX: u32 = 16_384;
const DYNAMIC_BYTES_MAX: u64 = 1 << 20;

fn len(data: Data<'_, '_>) -> Result<u64, Fault> {
    data.len()
        .map_err(|()| Fault::Malformed("its length cannot be read"))
}

fn expect_inside(data: Data<'_, '_>, at: u64, bytes: u64) -> Result<(), Fault> {
    let end = at.checked_add(bytes);
    if bytes == 0 || end.is_some_and(|end| len(data).is_ok_and(|len| end <= len)) {
        Ok(())
    } else {
        Err(Fault::Truncated)
    }
}

fn bytes_at<'a>(data: Data<'a, '_>, at: u64, bytes: u64) -> Result<&'a [u8], Fault> {
    expect_inside(data, at, bytes)?;
    data.read_bytes_at(at, bytes)
        .map_err(|()| Fault::Malformed("it cannot be read"))
}

/// Text up to a zero that lies before `end`.
fn text(data: Data<'_, '_>, at: u64, end: u64, what: &'static str) -> Result<String, Fault> {
    let bytes = data.read_bytes_at_until(at..end, 0);
    let bytes = bytes.map_err(|()| Fault::Malformed(what))?;
    String::from_utf8(bytes.to_vec()).map_err(|_| Fault::Malformed(what))
}

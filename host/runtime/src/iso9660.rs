//! ISO 9660 images (ECMA-119) with Joliet names, as machines take their first-boot data (NoCloud, config drive).
//!
//! The bytes of an image depend on its label and members only. The primary volume has names of interchange level 2,
//! made unique; the Joliet volume has the names as they are, which is what Linux and Windows show.

use std::collections::{BTreeMap, BTreeSet};

use crate::secrets::Member;

const SECTOR: usize = 2048;
/// Where the first path table stands: after the system area and three volume descriptors.
const FIRST_TABLE: u32 = 19;
/// The deepest nesting of directories that the standard allows (6.8.2.1).
const MAX_DEPTH: usize = 8;
/// The longest name, in UTF-16 code units, that Joliet readers show.
const MAX_NAME: usize = 64;
/// 1970-01-01 00:00:00 UTC, as a directory record has it.
const RECORDED: [u8; 7] = [70, 1, 1, 0, 0, 0, 0];

/// The two hierarchies of one image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Volume {
    Primary,
    Joliet,
}

#[derive(Default)]
struct Directory<'a> {
    directories: BTreeMap<&'a str, usize>,
    files: BTreeMap<&'a str, usize>,
    parent: usize,
}

/// Where a directory or file stands.
#[derive(Clone, Copy, Default)]
struct Extent {
    sector: u32,
    bytes: u32,
}

/// An image with these members.
///
/// # Errors
/// When the label or a member's name cannot be written; the text says which and why.
pub(crate) fn image(label: &str, members: &[Member]) -> Result<Vec<u8>, String> {
    if label.is_empty() || label.len() > 16 || !label.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)) {
        return Err(format!("the volume label {label:?} is not 1 to 16 letters, digits, _ or -"));
    }
    let tree = tree(members)?;
    let mut image = vec![0; FIRST_TABLE as usize * SECTOR];
    let mut next = FIRST_TABLE;
    let mut take = |bytes: usize| -> Result<Extent, String> {
        let (sector, bytes) = (next, size(bytes)?);
        next += bytes.div_ceil(size(SECTOR)?);
        Ok(Extent { sector, bytes })
    };
    let names = [Volume::Primary, Volume::Joliet].map(|volume| (volume, directory_names(&tree, volume)));
    let mut tables = Vec::new();
    for (_, names) in &names {
        let bytes = names.iter().map(|name| path_entry(name, 0, 0, false).len()).sum();
        tables.push((take(bytes)?, take(bytes)?));
    }
    let mut directories = Vec::new();
    for (volume, _) in &names {
        let nowhere = (vec![Extent::default(); tree.len()], vec![Extent::default(); members.len()]);
        let bytes = (0..tree.len()).map(|at| records(&tree, at, *volume, &nowhere.0, &nowhere.1).len());
        directories.push(bytes.map(&mut take).collect::<Result<Vec<_>, _>>()?);
    }
    let files = members.iter().map(|member| take(member.content.len())).collect::<Result<Vec<_>, _>>()?;

    for ((at, (volume, names)), (table, extents)) in names.iter().enumerate().zip(tables.iter().zip(&directories)) {
        let root = extents.first().copied().unwrap_or_default();
        put(&mut image, 16 + size(at)?, &descriptor(*volume, label, next, root, *table));
        for (extent, big_endian) in [(table.0, false), (table.1, true)] {
            let bytes: Vec<u8> = names
                .iter()
                .zip(extents)
                .zip(&tree)
                .flat_map(|((name, extent), directory)| path_entry(name, extent.sector, directory.parent, big_endian))
                .collect();
            put(&mut image, extent.sector, &bytes);
        }
        for (at, extent) in extents.iter().enumerate() {
            put(&mut image, extent.sector, &records(&tree, at, *volume, extents, &files));
        }
    }
    put(&mut image, 18, b"\xffCD001\x01");
    for (member, extent) in members.iter().zip(&files) {
        put(&mut image, extent.sector, &member.content);
    }
    image.resize(next as usize * SECTOR, 0);
    Ok(image)
}

fn size(bytes: usize) -> Result<u32, String> {
    u32::try_from(bytes).map_err(|_| "an image of more than 4 GiB".to_owned())
}

/// Writes from a sector on; grows the image to whole sectors.
fn put(image: &mut Vec<u8>, sector: u32, bytes: &[u8]) {
    let start = sector as usize * SECTOR;
    let end = start + bytes.len();
    if image.len() < end {
        image.resize(end.next_multiple_of(SECTOR), 0);
    }
    if let Some(place) = image.get_mut(start..end) {
        place.copy_from_slice(bytes);
    }
}

/// The directories, each after its parent and ordered as path tables have to be: by depth, parent and name.
fn tree(members: &[Member]) -> Result<Vec<Directory<'_>>, String> {
    let mut paths = BTreeSet::from([(0, Vec::new())]);
    let mut files = BTreeSet::new();
    for member in members {
        let path: Vec<&str> = member.path.trim_matches('/').split('/').collect();
        for segment in &path {
            let fine = !matches!(*segment, "" | "." | "..")
                && segment.encode_utf16().count() <= MAX_NAME
                && segment.chars().all(|c| u32::from(c) >= 0x20 && !r#"*:;?\"#.contains(c));
            if !fine {
                return Err(format!(
                    "{:?} is no path for an ISO 9660 image: a name has 1 to {MAX_NAME} characters and none of * : ; ? \\",
                    member.path
                ));
            }
        }
        let directory = member.path.ends_with('/');
        let depth = if directory { path.len() } else { path.len() - 1 };
        if depth >= MAX_DEPTH {
            return Err(format!("{:?} is nested deeper than {} directories", member.path, MAX_DEPTH - 1));
        }
        if !directory && !files.insert(path.clone()) {
            return Err(format!("{:?} is there twice", member.path));
        }
        for end in 1..=depth {
            paths.insert((end, path.get(..end).unwrap_or_default().to_vec()));
        }
    }
    if let Some(both) = files.iter().find(|file| paths.contains(&(file.len(), (*file).clone()))) {
        return Err(format!("{:?} is both a file and a directory", both.join("/")));
    }
    let order: Vec<&Vec<&str>> = paths.iter().map(|(_, path)| path).collect();
    let number = |path: &[&str]| order.iter().position(|other| other.as_slice() == path).unwrap_or(0);
    let mut tree: Vec<Directory> = order
        .iter()
        .map(|path| Directory {
            parent: number(path.split_last().map_or(&[], |(_, parent)| parent)),
            ..Directory::default()
        })
        .collect();
    for path in &order {
        if let Some((name, parent)) = path.split_last()
            && let Some(directory) = tree.get_mut(number(parent))
        {
            directory.directories.insert(name, number(path));
        }
    }
    for (at, member) in members.iter().enumerate().filter(|(_, member)| !member.path.ends_with('/')) {
        let path: Vec<&str> = member.path.trim_matches('/').split('/').collect();
        if let Some((name, parent)) = path.split_last()
            && let Some(directory) = tree.get_mut(number(parent))
        {
            directory.files.insert(name, at);
        }
    }
    Ok(tree)
}

/// Names of all directories as path tables have them; the root's is one zero byte.
fn directory_names(tree: &[Directory<'_>], volume: Volume) -> Vec<Vec<u8>> {
    let mut names = vec![vec![0]; tree.len()];
    for directory in tree {
        let mut taken = BTreeSet::new();
        for (name, at) in &directory.directories {
            let encoded = identifier(name, volume, true, &mut taken);
            if let Some(place) = names.get_mut(*at) {
                *place = encoded;
            }
        }
    }
    names
}

/// A name as a volume has it; `taken` are those of the same directory.
fn identifier(name: &str, volume: Volume, directory: bool, taken: &mut BTreeSet<String>) -> Vec<u8> {
    if volume == Volume::Joliet {
        return name.encode_utf16().flat_map(u16::to_be_bytes).collect();
    }
    let plain = |text: &str| -> String {
        let character = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        text.chars().map(character).collect()
    };
    let (stem, extension) = match name.rsplit_once('.').filter(|(stem, _)| !directory && !stem.is_empty()) {
        Some((stem, extension)) => (plain(stem), plain(extension)),
        None => (plain(name), String::new()),
    };
    let extension: String = extension.chars().take(8).collect();
    for number in 0u32.. {
        let suffix = if number == 0 { String::new() } else { number.to_string() };
        let stem: String = stem.chars().take(20 - suffix.len().min(10)).collect();
        let unique = if directory { format!("{stem}{suffix}") } else { format!("{stem}{suffix}.{extension};1") };
        if taken.insert(unique.clone()) {
            return unique.into_bytes();
        }
    }
    Vec::new()
}

/// The records of a directory: itself, its parent, and what is in it by name. None crosses a sector.
fn records(tree: &[Directory<'_>], at: usize, volume: Volume, directories: &[Extent], files: &[Extent]) -> Vec<u8> {
    let Some(directory) = tree.get(at) else { return Vec::new() };
    let extent = |of: &[Extent], at: usize| of.get(at).copied().unwrap_or_default();
    let mut taken = BTreeSet::new();
    let mut inside: Vec<(Vec<u8>, Extent, bool)> = Vec::new();
    for (name, at) in &directory.directories {
        inside.push((identifier(name, volume, true, &mut taken), extent(directories, *at), true));
    }
    for (name, at) in &directory.files {
        inside.push((identifier(name, volume, false, &mut taken), extent(files, *at), false));
    }
    inside.sort_by(|a, b| a.0.cmp(&b.0));
    let mut bytes = record(&[0], extent(directories, at), true);
    bytes.extend(record(&[1], extent(directories, directory.parent), true));
    for (name, extent, is_directory) in inside {
        let record = record(&name, extent, is_directory);
        if bytes.len() % SECTOR + record.len() > SECTOR {
            bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        }
        bytes.extend(record);
    }
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    bytes
}

fn both16(number: u16) -> [u8; 4] {
    let ([a, b], [c, d]) = (number.to_le_bytes(), number.to_be_bytes());
    [a, b, c, d]
}

fn both32(number: u32) -> Vec<u8> {
    [number.to_le_bytes(), number.to_be_bytes()].concat()
}

/// A directory record (ECMA-119, 9.1).
fn record(name: &[u8], extent: Extent, directory: bool) -> Vec<u8> {
    let mut bytes = vec![0, 0];
    bytes.extend(both32(extent.sector));
    bytes.extend(both32(extent.bytes));
    bytes.extend(RECORDED);
    bytes.extend([if directory { 2 } else { 0 }, 0, 0]);
    bytes.extend(both16(1));
    bytes.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
    bytes.extend(name);
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    if let Some(first) = bytes.first_mut() {
        *first = length;
    }
    bytes
}

/// An entry of a path table (ECMA-119, 9.4). Directories are numbered from 1 there.
fn path_entry(name: &[u8], sector: u32, parent: usize, big_endian: bool) -> Vec<u8> {
    let parent = u16::try_from(parent + 1).unwrap_or(1);
    let mut bytes = vec![u8::try_from(name.len()).unwrap_or(u8::MAX), 0];
    if big_endian {
        bytes.extend(sector.to_be_bytes());
        bytes.extend(parent.to_be_bytes());
    } else {
        bytes.extend(sector.to_le_bytes());
        bytes.extend(parent.to_le_bytes());
    }
    bytes.extend(name);
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    bytes
}

/// A volume descriptor (ECMA-119, 8.4 and 8.5).
fn descriptor(volume: Volume, label: &str, sectors: u32, root: Extent, table: (Extent, Extent)) -> Vec<u8> {
    // Texts are filled up with spaces, in the volume's own character set.
    let text = |text: &str, bytes: usize| -> Vec<u8> {
        let mut filled: Vec<u8> = match volume {
            Volume::Primary => text.bytes().collect(),
            Volume::Joliet => text.encode_utf16().flat_map(u16::to_be_bytes).collect(),
        };
        while filled.len() < bytes {
            match volume {
                Volume::Joliet if filled.len() + 2 <= bytes => filled.extend([0, b' ']),
                Volume::Joliet => filled.push(0),
                Volume::Primary => filled.push(b' '),
            }
        }
        filled.truncate(bytes);
        filled
    };
    let mut bytes = vec![if volume == Volume::Primary { 1 } else { 2 }];
    bytes.extend(b"CD001\x01\0");
    bytes.extend(text("", 32));
    bytes.extend(text(label, 32));
    bytes.extend([0; 8]);
    bytes.extend(both32(sectors));
    let mut escapes = [0; 32];
    if volume == Volume::Joliet
        && let Some(place) = escapes.get_mut(..3)
    {
        // UCS-2, level 3.
        place.copy_from_slice(b"%/E");
    }
    bytes.extend(escapes);
    bytes.extend(both16(1));
    bytes.extend(both16(1));
    bytes.extend(both16(2048));
    bytes.extend(both32(table.0.bytes));
    bytes.extend(table.0.sector.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(table.1.sector.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(record(&[0], root, true));
    for _ in 0..4 {
        bytes.extend(text("", 128));
    }
    for _ in 0..3 {
        bytes.extend(text("", 37));
    }
    for _ in 0..4 {
        // No date.
        bytes.extend(b"0000000000000000\0");
    }
    bytes.push(1);
    bytes.resize(SECTOR, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(path: &str, content: &[u8]) -> Member {
        Member { path: path.into(), mode: 0o644, content: content.to_vec() }
    }

    fn le32(bytes: &[u8], at: usize) -> usize {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    }

    /// Reads the Joliet hierarchy by the standard's offsets: path and content.
    fn read(image: &[u8], sector: usize, bytes: usize, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
        let data = &image[sector * SECTOR..sector * SECTOR + bytes];
        let mut at = 0;
        while at < data.len() {
            let length = data[at] as usize;
            if length == 0 {
                at = (at + 1).next_multiple_of(SECTOR);
                continue;
            }
            let record = &data[at..at + length];
            assert_eq!(at / SECTOR, (at + length - 1) / SECTOR, "a record crosses a sector");
            let (extent, size, name) = (le32(record, 2), le32(record, 10), &record[33..33 + record[32] as usize]);
            assert_eq!(u32::from_be_bytes(record[6..10].try_into().unwrap()) as usize, extent);
            if name != [0] && name != [1] {
                let units: Vec<u16> = name.chunks(2).map(|p| u16::from_be_bytes([p[0], p[1]])).collect();
                let path = format!("{prefix}{}", String::from_utf16(&units).unwrap());
                if record[25] & 2 != 0 {
                    read(image, extent, size, &format!("{path}/"), found);
                } else {
                    found.insert(path, image[extent * SECTOR..extent * SECTOR + size].to_vec());
                }
            }
            at += length;
        }
    }

    fn joliet(image: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let descriptor = &image[17 * SECTOR..18 * SECTOR];
        assert_eq!(&descriptor[..7], b"\x02CD001\x01");
        let root = &descriptor[156..190];
        let mut found = BTreeMap::new();
        read(image, le32(root, 2), le32(root, 10), "", &mut found);
        found
    }

    #[test]
    fn names_and_contents_survive() {
        let long = vec![b'x'; 5000];
        let files: [(&str, &[u8]); 5] = [
            ("user-data", b"#cloud-config\n"),
            ("meta-data", b"instance-id: a\n"),
            ("network-config", &long),
            ("openstack/latest/user_data", b""),
            ("openstack/Latest/meta_data.json", b"{}"),
        ];
        let members = || files.map(|(path, content)| member(path, content));
        let bytes = image("cidata", &members()).unwrap();
        assert_eq!(bytes, image("cidata", &members()).unwrap(), "the same bytes again");
        assert_eq!(bytes.len() % SECTOR, 0);
        let expected = files.map(|(path, content)| (path.to_owned(), content.to_vec())).into_iter().collect();
        assert_eq!(joliet(&bytes), expected);
        let primary = &bytes[16 * SECTOR..17 * SECTOR];
        assert_eq!(&primary[40..46], b"cidata");
        assert_eq!(le32(primary, 80) * SECTOR, bytes.len());
    }

    #[test]
    fn many_files_need_many_sectors() {
        let members: Vec<Member> =
            (0..300).map(|n| member(&format!("a-rather-long-name-{n}.txt"), n.to_string().as_bytes())).collect();
        let found = joliet(&image("cidata", &members).unwrap());
        assert_eq!(found.len(), 300);
        assert_eq!(found["a-rather-long-name-299.txt"], b"299");
    }

    #[test]
    fn an_independent_reader_sees_the_same() {
        if std::process::Command::new("isoinfo").arg("--version").output().is_err() {
            eprintln!("isoinfo is not here (Debian package genisoimage): read by our own parser only");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let members = [member("user-data", b"#cloud-config\n"), member("meta-data", b"a: b\n"), member("d/e", b"x")];
        std::fs::write(file.path(), image("cidata", &members).unwrap()).unwrap();
        let isoinfo = |arguments: &[&str]| {
            let output =
                std::process::Command::new("isoinfo").arg("-i").arg(file.path()).args(arguments).output().unwrap();
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(isoinfo(&["-d"]).contains("Volume id: cidata"));
        let list = isoinfo(&["-J", "-f"]);
        assert_eq!(list.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["/d", "/d/e", "/meta-data", "/user-data"]));
        assert_eq!(isoinfo(&["-J", "-x", "/user-data"]), "#cloud-config\n");
        let primary = isoinfo(&["-f"]);
        assert!(primary.contains("/USER_DATA.;1") && primary.contains("/D/E.;1"), "{primary}");
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        for bad in ["", "/", "a/../b", "a//b", "a;1", "a:b", &"x".repeat(65), "1/2/3/4/5/6/7/8/9"] {
            assert!(image("cidata", &[member(bad, b"")]).is_err(), "{bad}");
        }
        assert!(image("cidata", &[member("a", b""), member("a", b"")]).is_err());
        assert!(image("cidata", &[member("a", b""), member("a/b", b"")]).is_err());
        assert!(image("a label", &[]).is_err() && image("", &[]).is_err());
        assert!(image("cidata", &[]).is_ok());
        let twins = [member("a-b", b"1"), member("a_b", b"2")];
        assert_eq!(joliet(&image("cidata", &twins).unwrap()).len(), 2);
    }
}

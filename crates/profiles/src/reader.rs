//! The text of a profile.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use failures::text::{self, Item, Table};
use failures::words::{ERRNOS, STATUSES};
use toml::de::DeValue;

use crate::completions::{CLASSES, FIELDS, Fields, NEEDED};
use crate::library::{NAMES, Shipped};
use crate::order;
use crate::profile::{Family, Granting, NodeType, Profile, Said};
use crate::registration::{IovaRule, KeyLayout};
use crate::schema::{Atomics, DEVICE_FLAGS, Feature, Grant, Limit};
use crate::timers;
use crate::{MAX_ANCESTORS, MAX_PROFILE_BYTES, ProfileError};

/// What undoes a refusal that is inherited.
const TAKEN: &str = "taken";

/// A GID table that moves stays as it is for a tenth of a second at least, in nanoseconds.
const MIN_GID_PERIOD: u64 = 100_000_000;

/// A GID table that moves has at least so many entries.
const MIN_MOVING_GIDS: u64 = 16;

/// No page is larger.
const MAX_PAGE_BYTES: u64 = 1 << 30;

/// The largest errno of Linux.
const MAX_ERRNO: u32 = 4095;

/// The tables of a profile.
const TABLES: &[&str] = &[
    "about",
    "inherits",
    "source",
    "device",
    "limits",
    "port",
    "flags",
    "exceeded",
    "refuses",
    "granted",
    "gids",
    "memory",
    "link",
    "timers",
    "completions",
    "vendor-errors",
    "order",
];

/// Flags of the device that say that it has a feature. Those of memory windows say nothing of what programs may have:
/// bnxt_re shows them, and has no call for programs.
const FLAGS_OF_FEATURES: &[(&str, Feature)] = &[
    ("XRC", Feature::Xrc),
    ("SRQ_RESIZE", Feature::CreateSrq),
    ("AUTO_PATH_MIG", Feature::PathMigration),
    ("RAW_MULTI", Feature::RawPacket),
    ("RAW_IP_CSUM", Feature::RawPacket),
];

pub fn parse(name: &str, bytes: &[u8], depth: usize) -> Result<Profile, ProfileError> {
    let example = "a profile has tables such as [limits], with lines like max-qp = 65536";
    text::read_document("profile", bytes, MAX_PROFILE_BYTES, example, |top| read(name, top, depth))
}

fn read(name: &str, mut top: Table<'_>, depth: usize) -> Result<Profile, ProfileError> {
    let base = top.take("inherits").map(|item| inherited(&item, depth)).transpose()?;
    let mut profile = Profile { name: name.to_owned(), ..base.unwrap_or_default() };
    if let Some(item) = top.take("about") {
        profile.about = Some(item.text()?.into());
    }
    let source = top.take("source").map(|item| item.text().map(String::from)).transpose()?;
    let mut reader = Reader { profile, source, lines: Vec::new() };
    reader.tables(&mut top)?;
    top.finish("table of a profile", TABLES)?;
    reader.check()?;
    let Reader { mut profile, .. } = reader;
    let is_work = |feature: &&Feature| feature.table() == "refuses.work";
    let work = Feature::ALL.iter().filter(is_work);
    profile.work = work.clone().filter_map(|it| Some((it.word(), profile.refused[*it as usize]?))).collect();
    profile.failing_work = work.filter_map(|it| Some((it.word(), profile.failing[*it as usize]?))).collect();
    Ok(profile)
}

fn inherited(item: &Item<'_>, depth: usize) -> Result<Profile, ProfileError> {
    let name = item.text()?;
    let Some(Shipped { text, .. }) = Shipped::find(name) else {
        return Err(ProfileError::unknown(item.line, name, "profile that comes with ubiverbs", NAMES.iter().copied()));
    };
    if depth == MAX_ANCESTORS {
        return Err(item.wrong(format_args!("a chain of at most {MAX_ANCESTORS} profiles")));
    }
    parse(name, text.as_bytes(), depth + 1)
}

struct Reader {
    profile: Profile,
    /// The source of what has none of its own.
    source: Option<String>,
    /// Where this text says what.
    lines: Vec<(&'static str, usize)>,
}

/// What takes a value of a table.
type Take = fn(&mut Profile, &'static str, &Item<'_>) -> Result<(), ProfileError>;

impl Reader {
    fn tables(&mut self, top: &mut Table<'_>) -> Result<(), ProfileError> {
        for table in ["device", "limits", "port"] {
            let words = Limit::ALL.iter().filter(|limit| limit.table() == table).map(|limit| limit.word());
            let more: &[&str] = if table == "device" { &["name", "firmware", "node-type"] } else { &[] };
            let keys: Vec<&'static str> = more.iter().copied().chain(words).collect();
            self.table(top, table, table, &keys, if table == "device" { take_device } else { take_limit })?;
        }
        self.table(top, "flags", "flags", &["device", "atomics", "on-demand-paging", "timestamps"], take_flags)?;
        let limits: Vec<_> = Limit::ALL.iter().filter(|it| it.table() == "limits").map(|it| it.word()).collect();
        self.table(top, "exceeded", "exceeded", &limits, |profile, key, item| {
            let limit = Limit::ALL.iter().position(|limit| limit.word() == key).unwrap_or_default();
            profile.exceeded[limit] = errno(item)?;
            Ok(())
        })?;
        if let Some(item) = top.take("refuses") {
            let mut refuses = item.table("[refuses.pairs]")?;
            for (inner, path) in [
                ("pairs", "refuses.pairs"),
                ("calls", "refuses.calls"),
                ("work", "refuses.work"),
                ("access", "refuses.access"),
            ] {
                let features = Feature::ALL.iter().filter(|feature| feature.table() == path);
                let keys: Vec<_> = features.map(|feature| feature.word()).collect();
                self.table(&mut refuses, inner, path, &keys, |profile, key, item| {
                    let feature = Feature::ALL.iter().position(|feature| feature.word() == key).unwrap_or_default();
                    let is_work = Feature::ALL[feature].table() == "refuses.work";
                    profile.failing[feature] = if is_work { status(item)? } else { None };
                    profile.refused[feature] = if profile.failing[feature].is_some() { None } else { errno(item)? };
                    Ok(())
                })?;
            }
            refuses.finish("table of what is refused", &["pairs", "calls", "work", "access"])?;
        }
        let grants: Vec<_> = Grant::ALL.iter().map(|grant| grant.word()).collect();
        self.table(top, "granted", "granted", &grants, |profile, key, item| {
            let grant = Grant::ALL.iter().position(|grant| grant.word() == key).unwrap_or_default();
            profile.granted[grant] = Some(granting(item)?);
            Ok(())
        })?;
        self.table(top, "gids", "gids", &["layout", "families", "roce-v1", "moves"], take_gids)?;
        let memory = ["keys", "key-layout", "local-rkeys", "iova", "page-size", "empty-regions"];
        self.table(top, "memory", "memory", &memory, take_memory)?;
        self.table(top, "link", "link", &["loopback"], |profile, _, item| {
            profile.loopback = item.flag()?;
            Ok(())
        })?;
        let times: Vec<_> = timers::KEYS.iter().map(|(key, _)| *key).collect();
        self.table(top, "timers", "timers", &times, |profile, key, item| {
            let time = item.time(0)?;
            if time > timers::MAX_GRANULARITY {
                return Err(item.wrong("a time of at most 10s"));
            }
            if let Some((_, place)) = timers::KEYS.iter().find(|(known, _)| *known == key) {
                *place(&mut profile.timers) = time;
            }
            Ok(())
        })?;
        let classes = CLASSES.iter().map(|(word, _)| *word);
        let keys: Vec<_> = ["overrun", "others", "src-qp", "grh", "vendor-err"].into_iter().chain(classes).collect();
        self.table(top, "completions", "completions", &keys, take_completions)?;
        let statuses: Vec<_> = STATUSES.iter().map(|(name, _)| *name).collect();
        self.table(top, "vendor-errors", "vendor-errors", &statuses, |profile, key, item| {
            let status = failures::words::number(STATUSES, key).unwrap_or_default();
            let code = item.whole(0, u32::MAX.into())? as u32;
            profile.vendor_errors.retain(|(known, _)| *known != status);
            profile.vendor_errors.push((status, code));
            Ok(())
        })?;
        let keys: Vec<_> = order::KEYS.iter().map(|(key, ..)| *key).chain(["seed"]).collect();
        self.table(top, "order", "order", &keys, |profile, key, item| {
            match order::KEYS.iter().find(|(known, ..)| *known == key) {
                None => profile.order.seed = Some(item.whole(0, u64::MAX)?),
                Some((_, words, place)) => *place(&mut profile.order) = item.one_of(words, "word for it")? == words[1],
            }
            Ok(())
        })
    }

    /// Takes a table: each value may be a table of its own with the value and its source.
    fn table(
        &mut self,
        of: &mut Table<'_>,
        name: &'static str,
        path: &'static str,
        keys: &[&'static str],
        take: Take,
    ) -> Result<(), ProfileError> {
        let Some(item) = of.take(name) else { return Ok(()) };
        let mut table = item.table(&format!("[{path}]"))?;
        let source = table.take("source").map(|item| item.text().map(String::from)).transpose()?;
        let source = source.or_else(|| self.source.clone());
        let unknown = table.take("unknown").map(|item| item.entries("a list of keys")).transpose()?.unwrap_or_default();
        for key in keys {
            let Some(item) = table.take(key) else { continue };
            let (value, own) = match item.value {
                DeValue::Table(_) => {
                    let mut inner = item.table("{ value = 1, source = \"…\" }")?;
                    let value = inner.need("value", "{ value = 1, source = \"…\" }")?.called(key);
                    let own = inner.take("source").map(|item| item.text().map(String::from)).transpose()?;
                    inner.finish("key of a value", &["value", "source"])?;
                    (value, own)
                }
                _ => (item, None),
            };
            take(&mut self.profile, key, &value)?;
            self.say(path, key, shown(value.value), own.or_else(|| source.clone()));
            self.lines.push((key, value.line));
        }
        for entry in unknown {
            let text = entry.text()?;
            let Some(key) = keys.iter().find(|key| **key == text) else {
                return Err(ProfileError::unknown(entry.line, text, "key of this table", keys.iter().copied()));
            };
            if let Some((_, line)) = self.lines.iter().find(|(said, _)| said == key) {
                return Err(entry.wrong(format_args!("no {key} here, as line {line} says what it is")));
            }
            self.say(path, key, "unknown".into(), None);
        }
        let known: Vec<&str> = keys.iter().copied().chain(["source", "unknown"]).collect();
        table.finish(&format!("key of [{path}]"), &known)
    }

    fn say(&mut self, table: &str, key: &'static str, value: String, source: Option<String>) {
        self.profile.said.retain(|said| said.table != table || said.key != key);
        let profile = self.profile.name.clone();
        self.profile.said.push(Said { table: table.into(), key, value, source, profile });
    }

    /// The line of a key in this text.
    fn line(&self, key: &str) -> Option<usize> {
        self.lines.iter().find(|(said, _)| *said == key).map(|(_, line)| *line)
    }

    /// What contradicts itself.
    fn check(&self) -> Result<(), ProfileError> {
        let profile = &self.profile;
        let refused = |feature: Feature| profile.refused[feature as usize].is_some();
        let by = |feature: Feature| match self.line(feature.word()) {
            Some(line) => format!("line {line} refuses {feature}"),
            None => format!("the profile inherits that {feature} is refused; {feature} = \"{TAKEN}\" takes it"),
        };
        for limit in Limit::ALL {
            let Some(line) = self.line(limit.word()) else { continue };
            let value = profile.limits[*limit as usize].unwrap_or_default();
            if let Some(feature) = limit.needs().filter(|feature| value > 0 && refused(*feature)) {
                let said = format!("{limit} = {value}; expected 0, or no {limit}, as {}", by(feature));
                return Err(ProfileError::at(line, said));
            }
        }
        if let (Some(flags), Some(line)) = (profile.flags, self.line("device")) {
            let has = |name: &str| failures::words::number(DEVICE_FLAGS, name).is_some_and(|bit| flags & bit != 0);
            if let Some((name, feature)) = FLAGS_OF_FEATURES.iter().find(|(name, it)| has(name) && refused(*it)) {
                let said = format!("the device has the flag {name}; expected it without, as {}", by(*feature));
                return Err(ProfileError::at(line, said));
            }
        }
        let pairs = [Feature::Rc, Feature::Uc, Feature::Ud, Feature::Xrc, Feature::RawPacket];
        let last = |features: &[Feature]| features.iter().filter_map(|it| self.line(it.word())).max();
        if let Some(line) = last(&pairs).filter(|_| pairs.into_iter().all(refused)) {
            return Err(ProfileError::at(line, "all types of queue pairs are refused; expected one that is taken"));
        }
        if let (Some(line), IovaRule::Any) = (self.line("page-size"), profile.registration.iova) {
            let said =
                "page-size says nothing where iova is \"any\"; expected iova = \"page-offset\" or \"ignored\" too";
            return Err(ProfileError::at(line, said));
        }
        if let (Some(line), true) = (self.line("vendor-err"), profile.completions.no_vendor_errors)
            && !profile.vendor_errors.is_empty()
        {
            let said = "vendor-err = \"zero\"; expected no [vendor-errors], which say codes";
            return Err(ProfileError::at(line, said));
        }
        let entries = profile.limit(Limit::GidEntries).unwrap_or(MIN_MOVING_GIDS);
        if let Some(line) = self.line("moves").filter(|_| entries < MIN_MOVING_GIDS || profile.addresses.hardware) {
            let said = format!(
                "the GID table moves; expected gid-entries of at least {MIN_MOVING_GIDS}, and another layout than hardware"
            );
            return Err(ProfileError::at(line, said));
        }
        let (layout, windows) = (self.line("key-layout"), !refused(Feature::AllocMw));
        if let (Some(line), KeyLayout::Small, true) = (layout, profile.registration.key_layout, windows) {
            let said = "keys are small numbers, which windows cannot count up in their low 8 bits; expected ibv_alloc_mw \
                        to be refused";
            return Err(ProfileError::at(line, said));
        }
        let ways = [Feature::ByHand, Feature::Manager];
        if let Some(line) = last(&ways).filter(|_| ways.into_iter().all(refused) && !refused(Feature::Rc)) {
            let said =
                "RC queue pairs can be connected neither by hand nor by the connection manager; expected one way";
            return Err(ProfileError::at(line, said));
        }
        for (limit, least) in [(Limit::MaxQpRdAtom, "READs"), (Limit::MaxSrqWr, "shared receive queues")] {
            let none = match limit {
                Limit::MaxSrqWr => profile.limit(Limit::MaxSrq).is_some_and(|queues| queues > 0),
                _ => !refused(Feature::RdmaRead) && !refused(Feature::Rc),
            };
            let zero = profile.limits[limit as usize] == Some(0) && none;
            if let Some(line) = self.line(limit.word()).filter(|_| zero) {
                return Err(ProfileError::at(line, format!("{limit} = 0; expected 1 or more, as there are {least}")));
            }
        }
        Ok(())
    }
}

fn take_limit(profile: &mut Profile, key: &'static str, item: &Item<'_>) -> Result<(), ProfileError> {
    let Some(limit) = Limit::ALL.iter().find(|limit| limit.word() == key) else { return Ok(()) };
    let (least, most) = limit.range();
    let value = item.whole(least, most)?;
    if *limit == Limit::MaxMtu && !value.is_power_of_two() {
        return Err(item.wrong("256, 512, 1024, 2048 or 4096"));
    }
    profile.limits[*limit as usize] = Some(value);
    Ok(())
}

fn take_device(profile: &mut Profile, key: &'static str, item: &Item<'_>) -> Result<(), ProfileError> {
    match key {
        "name" => {
            let name = item.text()?;
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-{}".contains(&byte);
            if name.len() > 32 || !name.contains("{n}") || !name.bytes().all(plain) {
                return Err(item.wrong("letters, digits, _ and -, with {n} for the number: \"mlx5_{n}\""));
            }
            profile.device_name = Some(name.into());
        }
        "firmware" => profile.firmware = Some(item.text()?.into()),
        "node-type" => {
            let word = item.one_of(&["ca", "rnic", "unspecified"], "type of a node")?;
            profile.node_type = Some(match word {
                "ca" => NodeType::Ca,
                "rnic" => NodeType::Rnic,
                _ => NodeType::Unspecified,
            });
        }
        _ => return take_limit(profile, key, item),
    }
    Ok(())
}

fn take_flags(profile: &mut Profile, key: &'static str, item: &Item<'_>) -> Result<(), ProfileError> {
    match key {
        "device" => {
            let mut flags = 0;
            if let DeValue::Integer(_) = item.value {
                profile.flags = Some(item.whole(0, u32::MAX.into())? as u32);
                return Ok(());
            }
            for entry in item.entries("a list of flags, such as [\"XRC\"]")? {
                flags |= entry.named(DEVICE_FLAGS, "flag of a device", u32::MAX)?;
            }
            profile.flags = Some(flags);
        }
        "atomics" => profile.atomics = Atomics::of(item.one_of(Atomics::WORDS, "reach of atomics")?),
        "on-demand-paging" => profile.on_demand = Some(item.flag()?),
        _ => profile.timestamps = Some(item.flag()?),
    }
    Ok(())
}

fn take_gids(profile: &mut Profile, key: &'static str, item: &Item<'_>) -> Result<(), ProfileError> {
    let gids = &mut profile.addresses;
    match key {
        "layout" => {
            let word = item.one_of(&["dense", "sparse", "hardware"], "layout of a GID table")?;
            (gids.sparse, gids.hardware) = (word == "sparse", word == "hardware");
        }
        "families" => {
            gids.families.clear();
            for entry in item.entries("a list of ipv4, ipv6, link-local")? {
                gids.families.push(match entry.one_of(&["ipv4", "ipv6", "link-local"], "family of addresses")? {
                    "ipv4" => Family::Ipv4,
                    "ipv6" => Family::Ipv6,
                    _ => Family::LinkLocal,
                });
            }
            if gids.families.is_empty() {
                return Err(item.wrong("one family at least: ipv4, ipv6, link-local"));
            }
        }
        "moves" => {
            let period = item.time(0)?;
            if period < MIN_GID_PERIOD {
                return Err(item.wrong("a time of at least 100ms"));
            }
            gids.moves = Some(period);
        }
        _ => gids.roce_v1 = item.flag()?,
    }
    Ok(())
}

fn take_memory(profile: &mut Profile, key: &'static str, item: &Item<'_>) -> Result<(), ProfileError> {
    let memory = &mut profile.registration;
    match key {
        "keys" => memory.equal_keys = item.one_of(&["distinct", "equal"], "relation of keys")? == "equal",
        "key-layout" => {
            memory.key_layout = match item.one_of(&["random", "index-and-variant", "small"], "layout of keys")? {
                "random" => KeyLayout::Random,
                "small" => KeyLayout::Small,
                _ => KeyLayout::IndexAndVariant,
            };
        }
        "local-rkeys" => {
            memory.hides_rkeys = item.one_of(&["shown", "zero"], "R_Key of what peers may not use")? == "zero";
        }
        "iova" => {
            memory.iova = match item.one_of(&["any", "page-offset", "ignored"], "rule of addresses")? {
                "any" => IovaRule::Any,
                "ignored" => IovaRule::Ignored,
                _ => IovaRule::PageOffset,
            };
        }
        "page-size" => {
            memory.page_size = item.whole(1, MAX_PAGE_BYTES)?;
            if !memory.page_size.is_power_of_two() {
                return Err(item.wrong("a power of two"));
            }
        }
        _ => memory.refuses_empty = item.one_of(&["taken", "refused"], "word for regions of no bytes")? == "refused",
    }
    Ok(())
}

fn take_completions(profile: &mut Profile, key: &'static str, item: &Item<'_>) -> Result<(), ProfileError> {
    let completions = &mut profile.completions;
    match key {
        "overrun" => completions.drops = item.one_of(&["dead", "dropped"], "end of a full queue")? == "dropped",
        "others" => completions.zeroes = item.one_of(&["untouched", "zero"], "word for it")? == "zero",
        "src-qp" => completions.own_source = item.one_of(&["peer", "own"], "queue pair")? == "own",
        "grh" => completions.grh_of_all = item.one_of(&["datagrams", "all"], "word for receives")? == "all",
        "vendor-err" => {
            completions.no_vendor_errors = item.one_of(&["explained", "zero"], "vendor error")? == "zero";
        }
        class => {
            let mut fields = Fields::NONE;
            for entry in item.entries("a list of fields of ibv_wc")? {
                let name = entry.text()?;
                let Some((_, field)) = FIELDS.iter().find(|(known, _)| *known == name) else {
                    let known = FIELDS.iter().map(|(known, _)| *known);
                    return Err(ProfileError::unknown(entry.line, name, "field of ibv_wc", known));
                };
                fields = fields.with(*field);
            }
            if !NEEDED.iter().all(|field| fields.has(*field)) {
                return Err(item.wrong("wr_id and status among them, as every card fills them"));
            }
            if let Some(class) = CLASSES.iter().position(|(word, _)| *word == class) {
                completions.filled[class] = Some(fields);
            }
        }
    }
    Ok(())
}

/// The status of a completion, if the value is no errno and is not taken.
fn status(item: &Item<'_>) -> Result<Option<u32>, ProfileError> {
    let DeValue::String(text) = item.value else { return Ok(None) };
    if text == TAKEN || failures::words::number(ERRNOS, text).is_some() {
        return Ok(None);
    }
    let names = ERRNOS.iter().chain(STATUSES).map(|(name, _)| *name);
    let unknown = || ProfileError::unknown(item.line, text, "name of an error or a status, nor \"taken\"", names);
    failures::words::number(STATUSES, text).map(Some).ok_or_else(unknown)
}

/// An errno, or nothing for what is taken.
fn errno(item: &Item<'_>) -> Result<Option<i32>, ProfileError> {
    if matches!(item.value, DeValue::String(text) if text == TAKEN) {
        return Ok(None);
    }
    let number = item.named(ERRNOS, "name of an error, nor \"taken\"", MAX_ERRNO)?;
    if number == 0 { Err(item.wrong("an error such as \"EINVAL\", or \"taken\"")) } else { Ok(Some(number as i32)) }
}

fn granting(item: &Item<'_>) -> Result<Granting, ProfileError> {
    const WORDS: &[&str] = &[
        "exact",
        "power-of-two",
        "power-of-two-above",
        "power-of-two-less-one",
        "most",
        "multiple-of-N",
        "at-least-N",
        "shared-with-pieces",
    ];
    let text = item.text()?;
    let number = |prefix: &str| text.strip_prefix(prefix)?.parse().ok().filter(|number| (1..1 << 31).contains(number));
    Ok(match text {
        "exact" => Granting::Exact,
        "power-of-two" => Granting::PowerOfTwo,
        "power-of-two-above" => Granting::PowerOfTwoAbove,
        "power-of-two-less-one" => Granting::PowerOfTwoLessOne,
        "most" => Granting::Most,
        "shared-with-pieces" if item.key == "inline" => Granting::SharedWithPieces,
        _ => match (number("multiple-of-"), number("at-least-")) {
            (Some(of), _) => Granting::Multiple(of),
            (_, Some(least)) => Granting::AtLeast(least),
            _ => return Err(ProfileError::unknown(item.line, text, "size that is granted", WORDS.iter().copied())),
        },
    })
}

/// A value as it is written.
fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.clone().into_owned(),
        DeValue::Integer(number) if number.radix() == 16 => format!("0x{}", number.as_str()),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Boolean(flag) => format!("{flag}"),
        DeValue::Array(list) => {
            let words: Vec<String> = list.iter().map(|entry| shown(entry.get_ref())).collect();
            words.join(" ")
        }
        other => other.type_str().to_owned(),
    }
}

//! Every word and mistake of profiles, and those that come with ubiverbs.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};

use crate::completions::{CLASSES, FIELDS};
use crate::library::{PROFILES, Shipped};
use crate::{Class, Feature, Field, Fields, Grant, IovaRule, KeyLayout, Limit, Profile};

fn read(text: &str) -> &'static Profile {
    Box::leak(Box::new(Profile::parse("mine", text).unwrap_or_else(|error| panic!("{error}"))))
}

fn mistake(text: &str) -> String {
    Profile::parse("mine", text).expect_err(text).to_string()
}

#[test]
fn every_profile_that_is_shipped_can_be_read_and_says_where_each_value_comes_from() {
    for Shipped { name, text } in PROFILES {
        let profile = Profile::parse(name, text).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(profile.about.is_some_and(|about| !about.is_empty()), "{name}");
        for said in &profile.said {
            let sourced = said.source.is_some() || said.value == "unknown";
            assert!(sourced, "{name}: {} of [{}] has no source", said.key, said.table);
        }
        assert_eq!(Shipped::find(name).map(|found| found.text), Some(*text));
    }
}

#[test]
fn a_profile_that_says_nothing_refuses_nothing() {
    let profile = read("");
    for limit in Limit::ALL {
        assert_eq!(profile.limit(*limit), None);
        assert_eq!(profile.at_most(*limit, u64::MAX), Ok(()));
    }
    assert!(Feature::ALL.iter().all(|feature| profile.offers(*feature).is_ok()));
    assert!(Grant::ALL.iter().all(|grant| profile.grant(*grant, 5, 100).is_none()));
    assert!(profile.order.is_usual() && profile.said.is_empty() && profile.refused_work().is_empty());
}

#[test]
fn every_word_is_read() {
    for limit in Limit::ALL {
        let (least, most) = limit.range();
        for value in [least, most] {
            // Without READs there may be none under way.
            let text = format!("[{}]\n{limit} = {value}\n[refuses.work]\nRDMA_READ = 22", limit.table());
            let profile = read(&text);
            assert_eq!(profile.limit(*limit), Some(value), "{limit}");
        }
    }
    for feature in Feature::ALL {
        let profile = read(&format!("[{}]\n{feature} = 'EPERM'\n", feature.table()));
        assert_eq!(profile.offers(*feature).map_err(|refusal| refusal.errno), Err(1), "{feature}");
    }
    for grant in Grant::ALL {
        assert_eq!(read(&format!("[granted]\n{grant} = 'exact'")).grant(*grant, 7, 100), Some(7));
    }
}

#[test]
fn cards_fill_in_completions_as_they_say() {
    let usual = read("").completions;
    assert!(usual.is_usual() && CLASSES.iter().all(|(_, class)| usual.filled(*class) == Fields::ALL));
    let text = "[completions]\nerrors = ['wr_id', 'status', 'qp_num']\nothers = 'zero'\nsrc-qp = 'own'\ngrh = 'all'";
    let card = read(text).completions;
    assert!(card.zeroes && card.own_source && card.grh_of_all && !card.drops && !card.is_usual());
    let errors = card.filled(Class::Errors);
    let has: String = FIELDS.iter().filter(|(_, field)| errors.has(*field)).map(|(name, _)| *name).collect();
    assert_eq!(has, "wr_idstatusqp_num");
    assert!(card.filled(Class::Sends).has(Field::Opcode) && !errors.has(Field::Opcode));
    let quiet = read("[completions]\noverrun = 'dropped'\nvendor-err = 'zero'").completions;
    assert!(quiet.drops && quiet.no_vendor_errors && quiet.is_usual());
    for (class, _) in CLASSES {
        for (field, _) in FIELDS {
            read(&format!("[completions]\n{class} = ['wr_id', 'status', '{field}']"));
        }
    }
}

#[test]
fn keys_addresses_times_and_moving_tables_are_read() {
    let memory =
        read("[memory]\nkey-layout = 'index-and-variant'\niova = 'page-offset'\npage-size = 65536").registration;
    assert_eq!((memory.key_layout, memory.iova), (KeyLayout::IndexAndVariant, IovaRule::PageOffset));
    assert!(memory.admits(0x1_0010, 0x7_0010) && !memory.admits(0x1_0010, 0x7_1010));
    let usual = read("");
    assert_eq!(usual.admits_iova(0x1234, 0x9999), Ok(()));
    let other = read("[memory]\niova = 'ignored'\nlocal-rkeys = 'zero'\nempty-regions = 'refused'");
    assert_eq!(other.admits_iova(0x1234, 0x2235).map_err(|refusal| refusal.errno), Err(22));
    assert_eq!((other.admits_length(0).map_err(|refusal| refusal.errno), other.admits_length(1)), (Err(22), Ok(())));
    assert!(other.registration.hides_rkeys);
    let timers = read("[timers]\nack-timeout-least = '8ms'\nack-timeout-step = '4ms'\nrnr-timer-step = '1ms'").timers;
    assert_eq!((timers.ack.least, timers.ack.step, timers.rnr.least), (8_000_000, 4_000_000, 0));
    assert_eq!(read("[gids]\nmoves = '2s'").addresses.moves, Some(2_000_000_000));
}

#[test]
fn work_is_refused_with_an_errno_or_with_a_status() {
    let profile = read("[refuses.work]\nFLUSH = 'LOC_QP_OP_ERR'\nBIND_MW = 'EINVAL'");
    assert_eq!((profile.failing_work(), profile.refused_work()), (&[("FLUSH", 2)][..], &[("BIND_MW", 22)][..]));
    assert!(profile.offers(Feature::Flush).is_ok());
    let heir = read("inherits = 'rxe'\n[refuses.work]\nFLUSH = 'taken'");
    assert!(heir.failing_work().iter().all(|(name, _)| *name != "FLUSH"));
}

#[test]
fn sizes_are_granted() {
    let granted = |word: &str, asked| read(&format!("[granted]\ncqe = '{word}'")).grant(Grant::Cqe, asked, 1000);
    assert_eq!(granted("power-of-two", 64), Some(64));
    assert_eq!(granted("power-of-two-above", 64), Some(128));
    assert_eq!(granted("power-of-two-less-one", 64), Some(127));
    assert_eq!(granted("multiple-of-16", 17), Some(32));
    assert_eq!(granted("at-least-64", 1), Some(64));
    assert_eq!(granted("at-least-64", 65), Some(65));
    assert_eq!(granted("most", 1), Some(1000));
    assert_eq!(granted("power-of-two", 900), Some(1000));
    assert_eq!(granted("power-of-two", u64::MAX), None);
}

#[test]
fn a_heir_has_what_it_does_not_change() {
    let heir = read("inherits = 'siw'\n[limits]\nmax-qp = 7\n[refuses.pairs]\nUD = 'taken'\n[refuses.work]\nSEND = 5");
    assert_eq!(heir.limit(Limit::MaxQp), Some(7));
    assert_eq!(heir.limit(Limit::MaxInline), read(Shipped::find("siw").unwrap().text).limit(Limit::MaxInline));
    assert!(heir.offers(Feature::Ud).is_ok() && heir.offers(Feature::Uc).is_err());
    assert!(heir.refused_work().contains(&("SEND", 5)));
    let said = heir.said.iter().find(|said| said.key == "max-qp").unwrap();
    assert_eq!((said.value.as_str(), said.profile.as_str()), ("7", "mine"));
    assert_eq!(heir.said.iter().filter(|said| said.key == "max-qp").count(), 1);
}

#[test]
fn what_is_beyond_a_limit_is_refused_with_its_errno() {
    let text = "[limits]\nmax-qp = 10\nmax-inline = 64\nmax-qp-wr = 63\n[exceeded]\nmax-qp = 'EBUSY'\n";
    let profile = read(text);
    assert_eq!(profile.at_most(Limit::MaxQp, 11).unwrap_err().errno, 16);
    assert_eq!(profile.at_most(Limit::MaxInline, 65).unwrap_err().errno, 22);
    assert_eq!(profile.at_most(Limit::MaxInline, 64), Ok(()));
    assert_eq!(profile.at_most(Limit::MaxSendWr, 64).unwrap_err().word(), "max-send-wr");
    assert_eq!(read("[limits]\nmax-mr = 1").at_most(Limit::MaxMr, 2).unwrap_err().errno, 12);
    let refused = read("[limits]\nmax-srq = 0\n[refuses.calls]\nibv_create_srq = 'EOPNOTSUPP'");
    assert_eq!(refused.limit(Limit::MaxSrqWr), Some(0));
    assert_eq!(refused.at_most(Limit::MaxSrqWr, 1).unwrap_err().errno, 95);
    assert_eq!(read("[refuses.access]\nREMOTE_ATOMIC = 'EINVAL'").offers_access(1 << 3 | 1).unwrap_err().errno, 22);
}

#[test]
fn mistakes_are_told_with_their_line_and_what_was_expected() {
    for (text, line, words) in [
        ("\n[limits]\nmax-qb = 1", 3, "\"max-qb\" is no key of [limits]; expected"),
        ("[limits]\nmax-qb = 1", 2, "did you mean max-qp?"),
        ("[limit]", 1, "did you mean limits?"),
        ("[refuses.pairs]\nUX = 5", 2, "is no key of [refuses.pairs]"),
        ("[refuses.things]\nUX = 5", 1, "is no table of what is refused; expected pairs, calls, work, access"),
        ("[refuses.pairs]\nUC = 'EINVALID'", 2, "did you mean EINVAL?"),
        ("[refuses.pairs]\nUC = 0", 2, "expected an error such as \"EINVAL\""),
        ("[refuses.pairs]\nUC = true", 2, "UC = true; expected the name of a"),
        ("inherits = 'cx6'", 1, "is no profile that comes with ubiverbs"),
        ("[limits]\nmax-qp = -1", 2, "expected a number from 0 to"),
        ("[limits]\nmax-sge = 0", 2, "expected a number from 1 to"),
        ("[port]\nmax-mtu = 1500", 2, "expected 256, 512, 1024, 2048 or 4096"),
        ("[device]\nname = 'mlx5'", 2, "with {n} for the number"),
        ("[gids]\nfamilies = []", 2, "one family at least"),
        ("[gids]\nlayout = 'spars'", 2, "did you mean sparse?"),
        ("[granted]\ncqe = 'double'", 2, "is no size that is granted; expected exact"),
        ("[flags]\ndevice = ['XRX']", 2, "did you mean XRC?"),
        ("[limits]\nmax-qp = { value = 1, sauce = 'x' }", 2, "\"sauce\" is no key of a value"),
        ("[limits]\nmax-qp = { source = 'x' }", 2, "value is missing"),
        ("[limits]\nmax-qp = 1\nunknown = ['max-qp']", 3, "as line 2 says what it is"),
        ("[limits]\nunknown = ['max-pq']", 2, "is no key of this table"),
        ("[memory]\nkey-layout = 'smal'", 2, "is no layout of keys; expected random, index-and-variant, small"),
        ("[memory]\niova = 'none'", 2, "is no rule of addresses; expected any, page-offset, ignored"),
        ("[memory]\npage-size = 3", 2, "expected a power of two"),
        ("[memory]\nlocal-rkeys = true", 2, "expected a text in quotes"),
        ("[timers]\nrnr-timer-step = '11s'", 2, "expected a time of at most 10s"),
        ("[timers]\nrnr-timer-step = 4", 2, "expected a time from"),
        ("[timers]\nrnr-step = '4ms'", 2, "is no key of [timers]"),
        ("[gids]\nmoves = '1ms'", 2, "expected a time of at least 100ms"),
        ("[completions]\nsends = ['status']", 2, "expected wr_id and status among them"),
        ("[completions]\nsends = ['wr_id', 'status', 'len']", 2, "\"len\" is no field of ibv_wc"),
        ("[completions]\noverrun = 'lost'", 2, "is no end of a full queue; expected dead, dropped"),
        ("[completions]\nwrites = []", 2, "is no key of [completions]"),
        ("[refuses.work]\nFLUSH = 'LOC_QP_OP'", 2, "is no name of an error or a status, nor \"taken\""),
        ("[refuses.calls]\nibv_create_srq = 'LOC_QP_OP_ERR'", 2, "is no name of an error"),
        ("limits = 1", 1, "expected a table such as [limits]"),
        ("[limits\n", 1, "a profile has tables such as [limits]"),
    ] {
        let told = mistake(text);
        assert!(told.starts_with(&format!("line {line}: ")) && told.contains(words), "{text}: {told}");
    }
    assert!(mistake(&" ".repeat(300 << 10)).contains("at most 262144 are read"));
}

#[test]
fn contradictions_are_told() {
    for (text, line, words) in [
        ("[limits]\nmax-srq-wr = 5\n[refuses.calls]\nibv_create_srq = 'ENOSYS'", 2, "as line 4 refuses ibv_create_srq"),
        ("inherits = 'efa'\n[limits]\nmax-srq = 5", 3, "ibv_create_srq = \"taken\" takes it"),
        ("[flags]\ndevice = ['XRC']\n[refuses.pairs]\nXRC = 22", 2, "the device has the flag XRC; expected it without"),
        ("[refuses.pairs]\nRC = 1\nUC = 1\nUD = 1\nXRC = 1\nRAW_PACKET = 1", 6, "all types of queue pairs are refused"),
        ("[refuses.calls]\nconnect-by-hand = 22\nconnection-manager = 22", 3, "neither by hand nor by the connection"),
        ("[memory]\npage-size = 4096", 2, "page-size says nothing where iova is"),
        ("[memory]\nkey-layout = 'small'", 2, "expected ibv_alloc_mw to be refused"),
        ("[gids]\nmoves = '1s'\n[port]\ngid-entries = 4", 2, "expected gid-entries of at least 16"),
        ("[gids]\nmoves = '1s'\nlayout = 'hardware'", 2, "and another layout than hardware"),
        ("[completions]\nvendor-err = 'zero'\n[vendor-errors]\nGENERAL_ERR = 1", 2, "expected no [vendor-errors]"),
        ("[limits]\nmax-qp-rd-atom = 0", 2, "expected 1 or more, as there are READs"),
        ("[limits]\nmax-srq = 1\nmax-srq-wr = 0", 3, "expected 1 or more, as there are shared receive queues"),
    ] {
        let told = mistake(text);
        assert!(told.starts_with(&format!("line {line}: ")) && told.contains(words), "{text}: {told}");
    }
}

#[test]
fn nonsense_is_refused_without_a_panic() {
    let mut random = 7_u64;
    for Shipped { text, .. } in PROFILES {
        for _ in 0..50 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (random >> 33) as usize % bytes.len();
                bytes[at] = (random >> 25) as u8;
            }
            let _ = Profile::parse("mine", &bytes);
        }
    }
}

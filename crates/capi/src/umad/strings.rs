//! Names for people: of classes, methods, statuses and attributes. They are those of the original, letter by letter:
//! programs print them, and people search for them.

use std::ffi::{CStr, c_char};

const UNKNOWN_NAME: &CStr = c"<unknown>";

/// By class.
const CLASS_NAMES: &[(u8, &CStr)] = &[
    (0x01, c"Subn"),
    (0x81, c"Subn"),
    (0x03, c"SubnAdm"),
    (0x04, c"Perf"),
    (0x05, c"BM"),
    (0x06, c"DevMgt"),
    (0x07, c"ComMgt"),
    (0x08, c"SNMP"),
    (0x10, c"DevAdm"),
    (0x11, c"BootMgt"),
    (0x12, c"BIS"),
    (0x21, c"CongestionManagment"),
];

/// By method, in all classes.
const METHOD_NAMES: &[(u8, &CStr)] = &[
    (0x01, c"Get"),
    (0x02, c"Set"),
    (0x81, c"GetResp"),
    (0x03, c"Send"),
    (0x05, c"Trap"),
    (0x06, c"Report"),
    (0x86, c"ReportResp"),
    (0x07, c"TrapRepress"),
];

/// By method, in subnet administration only.
const ADMINISTRATION_METHODS: &[(u8, &CStr)] = &[
    (0x12, c"GetTable"),
    (0x92, c"GetTableResp"),
    (0x15, c"Delete"),
    (0x95, c"DeleteResp"),
    (0x14, c"GetMulti"),
    (0x94, c"GetMultiResp"),
    (0x13, c"GetTraceTable"),
];

/// By attribute, in all classes.
const ATTRIBUTE_NAMES: &[(u16, &CStr)] = &[(0x0001, c"Class Port Info"), (0x0002, c"Notice"), (0x0003, c"Inform Info")];

/// By attribute, in subnet management.
const SUBNET_ATTRIBUTES: &[(u16, &CStr)] = &[
    (0x0010, c"NodeDescription"),
    (0x0011, c"NodeInfo"),
    (0x0012, c"SwitchInfo"),
    (0x0014, c"GUIDInfo"),
    (0x0015, c"PortInfo"),
    (0x0016, c"P_KeyTable"),
    (0x0017, c"SLtoVLMappingTable"),
    (0x0018, c"VLArbitrationTable"),
    (0x0019, c"LinearForwardingTable"),
    (0x001a, c"RandomForwardingTable"),
    (0x001b, c"MulticastForwardingTable"),
    (0x0020, c"SMInfo"),
    (0x0030, c"VendorDiag"),
    (0x0031, c"LedInfo"),
    (0x001c, c"LinkSpeedWidthPairsTable"),
    (0x001d, c"VendorSpecificMadsTable"),
    (0x001e, c"HierarchyInfo"),
    (0x0032, c"CableInfo"),
    (0x0033, c"PortInfoExtended"),
];

/// By attribute, in subnet administration.
const ADMINISTRATION_ATTRIBUTES: &[(u16, &CStr)] = &[
    (0x0011, c"NodeRecord"),
    (0x0012, c"PortInfoRecord"),
    (0x0013, c"SLtoVLMappingTableRecord"),
    (0x0014, c"SwitchInfoRecord"),
    (0x0015, c"LinearForwardingTableRecord"),
    (0x0016, c"RandomForwardingTableRecord"),
    (0x0017, c"MulticastForwardingTableRecord"),
    (0x0018, c"SMInfoRecord"),
    (0x00f3, c"InformInfoRecord"),
    (0x0020, c"LinkRecord"),
    (0x0030, c"GuidInfoRecord"),
    (0x0031, c"ServiceRecord"),
    (0x0033, c"P_KeyTableRecord"),
    (0x0035, c"PathRecord"),
    (0x0036, c"VLArbitrationTableRecord"),
    (0x0038, c"MCMemberRecord"),
    (0x0039, c"TraceRecord"),
    (0x003a, c"MultiPathRecord"),
    (0x003b, c"ServiceAssociationRecord"),
    (0x0019, c"LinkSpeedWidthPairsTableRecord"),
    (0x003c, c"HierarchyInfoRecord"),
    (0x003d, c"CableInfoRecord"),
    (0x003e, c"PortInfoExtendedRecord"),
];

/// By attribute, in connection management.
const CONNECTION_ATTRIBUTES: &[(u16, &CStr)] = &[
    (0x0010, c"ConnectRequest"),
    (0x0011, c"MsgRcptAck"),
    (0x0012, c"ConnectReject"),
    (0x0013, c"ConnectReply"),
    (0x0014, c"ReadyToUse"),
    (0x0015, c"DisconnectRequest"),
    (0x0016, c"DisconnectReply"),
    (0x0017, c"ServiceIDResReq"),
    (0x0018, c"ServiceIDResReqResp"),
    (0x0019, c"LoadAlternatePath"),
    (0x001a, c"AlternatePathResponse"),
    (0x001b, c"SuggestAlternatePath"),
    (0x001c, c"SuggestPathResponse"),
];

/// By the upper byte of the status, in subnet administration.
const ADMINISTRATION_STATUSES: &[(u16, &CStr)] = &[
    (0x0000, c"Success"),
    (0x0001, c"No Resources"),
    (0x0002, c"Request Invalid"),
    (0x0003, c"No Records"),
    (0x0004, c"Too Many Records"),
    (0x0005, c"Invalid GID"),
    (0x0006, c"Insufficient Components"),
    (0x0007, c"Request Denied"),
    (0x0008, c"Priority Suggested"),
];

fn find<T: PartialEq + Copy>(table: &[(T, &'static CStr)], number: T) -> Option<&'static CStr> {
    table.iter().find(|(known, _)| *known == number).map(|(_, name)| *name)
}

/// The name of a class.
#[unsafe(export_name = "ubiverbs_umad_class_str")]
pub extern "C" fn umad_class_str(class: u8) -> *const c_char {
    let of_range = || match class {
        0x09..=0x0f | 0x30..=0x4f => c"Vendor",
        0x10..=0x2f => c"Application",
        _ => UNKNOWN_NAME,
    };
    find(CLASS_NAMES, class).unwrap_or_else(of_range).as_ptr()
}

/// The name of a method.
#[unsafe(export_name = "ubiverbs_umad_method_str")]
pub extern "C" fn umad_method_str(class: u8, method: u8) -> *const c_char {
    let own = if class == SUBNET_ADMINISTRATION { find(ADMINISTRATION_METHODS, method) } else { None };
    // Without its last character, as in the original.
    own.or_else(|| find(METHOD_NAMES, method)).unwrap_or(c"<unknown").as_ptr()
}

const SUBNET_ADMINISTRATION: u8 = wire::mad::MadHeader::CLASS_SUBNET_ADMINISTRATION;

/// The name of an attribute, whose number is in the order of the network.
#[unsafe(export_name = "ubiverbs_umad_attribute_str")]
pub extern "C" fn umad_attribute_str(class: u8, attribute: u16) -> *const c_char {
    let attribute = u16::from_be(attribute);
    let table = match class {
        0x01 | 0x81 => SUBNET_ATTRIBUTES,
        SUBNET_ADMINISTRATION => ADMINISTRATION_ATTRIBUTES,
        wire::mad::MadHeader::CLASS_CM => CONNECTION_ATTRIBUTES,
        _ => &[],
    };
    find(table, attribute).or_else(|| find(ATTRIBUTE_NAMES, attribute)).unwrap_or(UNKNOWN_NAME).as_ptr()
}

/// What the status of a datagram says, in the order of the network.
#[unsafe(export_name = "ubiverbs_umad_common_mad_status_str")]
pub extern "C" fn umad_common_mad_status_str(status: u16) -> *const c_char {
    let status = u16::from_be(status);
    let name = match (status & 1, status & 2, status & 0x1c) {
        (1, ..) => c"Busy",
        (_, 2, _) => c"Redirection required",
        (.., 0x04) => c"Bad Version",
        (.., 0x08) => c"Method not supported",
        (.., 0x0c) => c"Method/Attribute combo not supported",
        (.., 0x1c) => c"Invalid attribute/modifier field",
        _ => c"Success",
    };
    name.as_ptr()
}

/// What the status of a datagram of subnet administration says, in network byte order.
#[unsafe(export_name = "ubiverbs_umad_sa_mad_status_str")]
pub extern "C" fn umad_sa_mad_status_str(status: u16) -> *const c_char {
    find(ADMINISTRATION_STATUSES, u16::from_be(status) >> 8).unwrap_or(c"Undefined Error").as_ptr()
}

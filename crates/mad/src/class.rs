//! What is known of a management class: which have segmented messages (RMPP), which name their vendor, and where the
//! data of a datagram begins (specification 13.4 and 13.6).

use wire::mad::MadHeader;

/// Where the header of segmented messages ends: behind the common header.
pub const RMPP_HEADER_END: usize = 36;

/// The highest number of a class version, and one.
pub const CLASS_VERSION_END: u8 = 8;

/// Numbers of classes end here, but for the one of directed routes.
pub const CLASS_NUMBER_END: u8 = 80;

/// Whether datagrams of the class carry their vendor's number.
pub fn has_oui(class: u8) -> bool {
    MadHeader::CLASSES_WITH_OUI.contains(&class)
}

/// Whether messages of the class may be segmented.
pub fn has_rmpp(class: u8) -> bool {
    matches!(
        class,
        MadHeader::CLASS_SUBNET_ADMINISTRATION
            | MadHeader::CLASS_DEVICE_MANAGEMENT
            | MadHeader::CLASS_DEVICE_ADMINISTRATION
            | MadHeader::CLASS_BOOT_INFORMATION
    ) || has_oui(class)
}

/// Whether it is of subnet management, which is queue pair 0's.
pub fn is_subnet_management(class: u8) -> bool {
    matches!(class, MadHeader::CLASS_SUBNET | MadHeader::CLASS_SUBNET_DIRECTED)
}

/// Where the data of a datagram begins.
pub fn data_offset(class: u8) -> usize {
    match class {
        MadHeader::CLASS_SUBNET_ADMINISTRATION => 56,
        MadHeader::CLASS_DEVICE_MANAGEMENT
        | MadHeader::CLASS_DEVICE_ADMINISTRATION
        | MadHeader::CLASS_BOOT_INFORMATION => 64,
        class if has_oui(class) => 40,
        _ => MadHeader::LEN,
    }
}

/// The vendor's number in a datagram; 0 in classes that have none.
pub fn oui(class: u8, bytes: &[u8]) -> u32 {
    match bytes.get(RMPP_HEADER_END + 1..RMPP_HEADER_END + 4) {
        Some(&[a, b, c]) if has_oui(class) => u32::from_be_bytes([0, a, b, c]),
        _ => 0,
    }
}

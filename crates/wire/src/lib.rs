//! RoCEv2 on the wire: opcodes, headers, ICRC, management datagrams and CM messages.

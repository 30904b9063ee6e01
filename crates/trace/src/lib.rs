//! The vocabulary of events of the ubiverbs NIC, and where they can go.

//! Words that can be explained: a name, a number, a few words, and what to look at. They are kept as text beside the
//! code: a line `NAME NUMBER: a few words`, then indented lines.

/// What kind of word it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `ibv_wc.status`.
    Status,
    /// `ibv_async_event.event_type`.
    AsyncEvent,
    /// `rdma_cm_event.event`.
    CmEvent,
    /// `rdma_cm_event.status` of a rejected connection.
    Reject,
    /// The errno of a call.
    Errno,
    /// A rule; `ibv_wc.vendor_err`.
    Rule,
    /// A line that a program, a library or a driver prints.
    Message,
}

impl Kind {
    /// Every kind, in the order in which they are looked for.
    pub const ALL: [Kind; 7] =
        [Kind::Status, Kind::Rule, Kind::AsyncEvent, Kind::CmEvent, Kind::Reject, Kind::Message, Kind::Errno];

    /// The word in front of a name or number that asks for this kind.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Status => "status",
            Kind::AsyncEvent => "event",
            Kind::CmEvent => "cm",
            Kind::Reject => "reject",
            Kind::Errno => "errno",
            Kind::Rule => "rule",
            Kind::Message => "message",
        }
    }

    /// What words of this kind are.
    pub const fn title(self) -> &'static str {
        match self {
            Kind::Status => "completion statuses (ibv_wc.status)",
            Kind::AsyncEvent => "asynchronous events (ibv_get_async_event)",
            Kind::CmEvent => "events of the connection manager (rdma_get_cm_event)",
            Kind::Reject => "reasons of RDMA_CM_EVENT_REJECTED (its status)",
            Kind::Errno => "errno of calls",
            Kind::Message => "lines that programs, libraries and drivers print",
            Kind::Rule => "rules (ibv_wc.vendor_err, --why, --check)",
        }
    }
}

/// A word that can be explained.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExplainedWord {
    /// What kind it is.
    pub kind: Kind,
    /// Its name; for an errno the call and the errno.
    pub name: String,
    /// Its number.
    pub number: Option<u32>,
    /// What it means, in a few words.
    pub short: String,
    /// What else there is to know, several lines or none.
    pub text: String,
}

impl ExplainedWord {
    /// The name, and the number where there is one.
    pub fn heading(&self) -> String {
        match (self.kind, self.number) {
            (Kind::Errno | Kind::Rule, _) | (_, None) => self.name.clone(),
            (_, Some(number)) => format!("{} ({number})", self.name),
        }
    }

    /// All of it, for programs.
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": self.kind.word(),
            "name": self.name,
            "number": self.number,
            "short": self.short,
            "text": self.text,
        })
    }

    /// The words of one of the texts.
    pub fn read(kind: Kind, source: &str) -> Vec<ExplainedWord> {
        let mut entries: Vec<ExplainedWord> = Vec::new();
        for line in source.lines() {
            if let Some(text) = line.strip_prefix("  ") {
                if let Some(entry) = entries.last_mut() {
                    entry.text.push_str(text);
                    entry.text.push('\n');
                }
                continue;
            }
            let Some((head, short)) = line.split_once(": ") else { continue };
            let (name, last) = head.rsplit_once(' ').filter(|_| kind != Kind::Message).unwrap_or((head, ""));
            let (name, number) = match last.parse() {
                Ok(number) => (name, Some(number)),
                Err(_) => (head, super::errno::number(last)),
            };
            let (name, short) = (name.to_owned(), short.to_owned());
            entries.push(ExplainedWord { kind, name, number, short, text: String::new() });
        }
        entries
    }
}

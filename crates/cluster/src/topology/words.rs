//! Topologies by name, for command lines and tables.

use super::Topology;
use std::fmt;
use std::str::FromStr;

impl Topology {
    /// The names that [`FromStr`] knows; `torus:R` is one of `R` rows.
    pub const NAMES: [&'static str; 7] = ["ring", "bidirectional-ring", "mesh", "torus", "hypercube", "tree", "star"];
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Topology::Ring => "ring",
            Topology::BidirectionalRing => "bidirectional-ring",
            Topology::FullMesh => "mesh",
            Topology::Torus { rows: 0 } => "torus",
            Topology::Torus { rows } => return f.pad(&format!("torus:{rows}")),
            Topology::Hypercube => "hypercube",
            Topology::BinaryTree => "tree",
            Topology::Star => "star",
            Topology::Custom(custom) => &custom.name,
        })
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Topology, String> {
        let unknown = || format!("there is no topology {text:?}; there are {}", Topology::NAMES.join(", "));
        if let Some(rows) = text.strip_prefix("torus:") {
            let rows = rows.parse().ok().filter(|rows| *rows > 0);
            return Ok(Topology::Torus { rows: rows.ok_or_else(|| format!("{text}: a number of rows is expected"))? });
        }
        Ok(match text {
            "ring" => Topology::Ring,
            "bidirectional-ring" => Topology::BidirectionalRing,
            "mesh" | "full-mesh" => Topology::FullMesh,
            "torus" => Topology::Torus { rows: 0 },
            "hypercube" => Topology::Hypercube,
            "tree" | "binary-tree" => Topology::BinaryTree,
            "star" => Topology::Star,
            _ => return Err(unknown()),
        })
    }
}

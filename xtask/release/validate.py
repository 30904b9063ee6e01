"""Judges a list of components by CycloneDX's own schema, strictly: `validate.py FILE`. `cargo xtask release` calls it."""

import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

with open(sys.argv[1], encoding="utf-8") as file:
    text = file.read()
wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
if wrong:
    sys.exit(f"{sys.argv[1]}: {wrong}")
print(f"{sys.argv[1]}: valid CycloneDX 1.6")

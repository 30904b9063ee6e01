//! Memory windows.

use alloc::format;

use trace::Call;
use wire::Key;

use super::{WINDOW_KEY_UNCHANGED, WINDOW_NEVER_BOUND};
use crate::examine::Out;
use crate::finding::{Finding, Subject};
use crate::model::{Model, Window};

pub(super) fn called(call: &Call, model: &Model, out: &mut Out<'_>) {
    match *call {
        Call::BindWindow { window, new_key, length, .. } if length > 0 => {
            let before = model.window(window).filter(|window| window.type_2).and_then(|window| window.bound_as);
            if before == Some(new_key) {
                out.tell(
                    Finding::new(
                        WINDOW_KEY_UNCHANGED,
                        Subject::Memory(new_key.value()),
                        format!("the window is bound again under key {new_key}, the key that it had before"),
                        "take a new key for each binding: mw->rkey = ibv_inc_rkey(mw->rkey)",
                    )
                    .because("a peer that was given the key for the old binding can use it for the new one"),
                );
            }
        }
        Call::FreeWindow { key } => {
            if let Some(window) = model.window(key) {
                unbound(key, window, out);
            }
        }
        _ => {}
    }
}

pub(super) fn finish(model: &Model, out: &mut Out<'_>) {
    model.windows.iter().for_each(|(key, window)| unbound(Key::new(*key), window, out));
}

fn unbound(key: Key, window: &Window, out: &mut Out<'_>) {
    if window.bound_as.is_none() {
        out.tell(Finding::new(
            WINDOW_NEVER_BOUND,
            Subject::Domain(window.pd),
            format!("the memory window with key {key} in PD {} was never bound", window.pd),
            "bind the window with ibv_bind_mw or IBV_WR_BIND_MW, or leave ibv_alloc_mw out",
        ));
    }
}

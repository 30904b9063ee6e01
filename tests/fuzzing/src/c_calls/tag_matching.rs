//! Calls that make shared receive queues which match tags, add and delete tagged buffers, and put headers where the
//! program sends from.

use super::{Program, any, keep, srq_attributes};
use crate::choices::Choices;
use abi::{Handle, InOut, Out, ibv_ops_wr, ibv_srq_init_attr_ex, verbs_context};
use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr::null_mut;

impl Program {
    /// The part of the context that newer programs know.
    fn verbs(&self) -> &verbs_context {
        // SAFETY: a context of the library is the last field of this structure, and is not closed before the program
        // ends.
        unsafe { &*self.context.byte_sub(offset_of!(verbs_context, context)).cast() }
    }

    pub(super) fn create_tag_queue(&mut self, choices: &mut Choices<'_>) {
        // SAFETY: objects of the program's, or null; all that the attributes name.
        unsafe {
            let mut attributes: ibv_srq_init_attr_ex = std::mem::zeroed();
            attributes.attr = srq_attributes(choices);
            attributes.comp_mask = choices.of(&[27, 27, 27, 31, 11, 19, 26, 25, u32::MAX]);
            attributes.srq_type = choices.of(&[2, 2, 2, 0, 1, 3]);
            (attributes.pd, attributes.cq) = (any(choices, &self.pds), any(choices, &self.cqs));
            attributes.tm_cap.max_num_tags = choices.of(&[4, 1, 1023, 0, u32::MAX]);
            attributes.tm_cap.max_ops = choices.of(&[4, 0, u32::MAX]);
            if let Some(create) = self.verbs().create_srq_ex {
                keep(&mut self.srqs, create(Handle::new(self.context), InOut::from(&mut attributes)));
            }
        }
    }

    pub(super) fn tag_operations(&mut self, choices: &mut Choices<'_>) {
        let srq = any(choices, &self.srqs);
        if srq.is_null() {
            return; // an inline function of the header follows it
        }
        if choices.one_in(2) {
            // What the program sends next may begin with it.
            let at = usize::from(choices.short()) % (self.memory.len() - 4096) / 8 * 8;
            let header = [choices.of(&[3, 1, 2, 0, 4]), 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, choices.byte() & 3];
            self.memory[at..][..16].copy_from_slice(&header);
            let data = self.memory.as_ptr() as u64 + u64::from(choices.short() & 0x1fff);
            // SAFETY: null, or a region of the program's.
            let key = unsafe { any(choices, &self.mrs).as_ref() }.map_or(choices.word(), |mr| mr.rkey);
            self.memory[at + 16..][..8].copy_from_slice(&data.to_be_bytes());
            self.memory[at + 24..][..4].copy_from_slice(&key.to_be_bytes());
            let length = choices.of(&[8, 64, 0, 1000, u32::MAX]);
            self.memory[at + 28..][..4].copy_from_slice(&length.to_be_bytes());
        }
        let mut lists: Vec<_> = (0..choices.of(&[1, 1, 2, 6])).map(|_| self.pieces(choices, false)).collect();
        let mut requests: Vec<ibv_ops_wr> = Vec::new();
        for list in &mut lists {
            self.wr_id += 1;
            // SAFETY: all of it may be zero.
            let mut request: ibv_ops_wr = unsafe { std::mem::zeroed() };
            request.wr_id = self.wr_id;
            request.opcode = choices.of(&[0, 0, 0, 1, 2, 3]);
            request.flags = choices.of(&[3, 1, 2, 0, 4, -1]);
            (request.tm.unexpected_cnt, request.tm.handle) = (u32::from(choices.byte()) & 7, choices.byte().into());
            request.tm.recv_wr_id = self.wr_id;
            (request.tm.sg_list, request.tm.num_sge) = (list.as_mut_ptr(), list.len() as c_int);
            if choices.one_in(32) {
                (request.tm.sg_list, request.tm.num_sge) = (null_mut(), choices.of(&[1, -1, i32::MAX, 33]));
            }
            (request.tm.tag, request.tm.mask) = ((choices.byte() & 3).into(), choices.of(&[u64::MAX, 3, 1, 0]));
            requests.push(request);
        }
        for index in 1..requests.len() {
            requests[index - 1].next = &raw mut requests[index];
        }
        let (Some(post), Some(first)) = (self.verbs().post_srq_ops, requests.first_mut()) else { return };
        let mut bad: *mut ibv_ops_wr = null_mut();
        // SAFETY: a queue of the program's; the requests and their pieces live until the call returns.
        let answer = unsafe { post(Handle::new(srq), InOut::from(first), Out::from(&mut bad)) };
        assert_eq!(answer != 0, !bad.is_null(), "a refused request is named");
    }
}

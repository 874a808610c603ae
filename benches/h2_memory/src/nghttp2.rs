//! libnghttp2, used as in its own examples: sessions fed with bytes, names and values not copied.

use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use crate::{AUTHORITY, PATH, REQUEST_FIELDS, RESPONSE_FIELDS, Shape, Subject, Totals};

/// The few declarations of `nghttp2.h` that are needed.
#[allow(non_camel_case_types)]
mod ffi {
    use super::{c_int, c_void};

    #[repr(C)]
    pub struct nv {
        pub name: *const u8,
        pub value: *const u8,
        pub name_len: usize,
        pub value_len: usize,
        pub flags: u8,
    }

    pub const NO_COPY: u8 = 2 | 4;
    pub const DATA_FLAG_EOF: u32 = 1;
    pub const FLAG_END_STREAM: u8 = 1;
    pub const HEADERS: u8 = 1;
    pub const SETTINGS_MAX_CONCURRENT_STREAMS: i32 = 3;

    #[repr(C)]
    pub struct frame_hd {
        pub length: usize,
        pub stream_id: i32,
        pub kind: u8,
        pub flags: u8,
        pub reserved: u8,
    }

    #[repr(C)]
    pub struct settings_entry {
        pub id: i32,
        pub value: u32,
    }

    pub type read_callback = unsafe extern "C" fn(
        *mut c_void,
        i32,
        *mut u8,
        usize,
        *mut u32,
        *mut *mut c_void,
        *mut c_void,
    ) -> isize;

    #[repr(C)]
    pub struct data_provider {
        pub source: *mut c_void,
        pub read: read_callback,
    }

    pub type on_frame = unsafe extern "C" fn(*mut c_void, *const frame_hd, *mut c_void) -> c_int;
    pub type on_header = unsafe extern "C" fn(
        *mut c_void,
        *const frame_hd,
        *const u8,
        usize,
        *const u8,
        usize,
        u8,
        *mut c_void,
    ) -> c_int;
    pub type on_data =
        unsafe extern "C" fn(*mut c_void, u8, i32, *const u8, usize, *mut c_void) -> c_int;
    pub type on_close = unsafe extern "C" fn(*mut c_void, i32, u32, *mut c_void) -> c_int;

    #[link(name = "nghttp2")]
    unsafe extern "C" {
        pub fn nghttp2_session_callbacks_new(to: *mut *mut c_void) -> c_int;
        pub fn nghttp2_session_callbacks_set_on_frame_recv_callback(on: *mut c_void, f: on_frame);
        pub fn nghttp2_session_callbacks_set_on_header_callback(on: *mut c_void, f: on_header);
        pub fn nghttp2_session_callbacks_set_on_data_chunk_recv_callback(
            on: *mut c_void,
            f: on_data,
        );
        pub fn nghttp2_session_callbacks_set_on_stream_close_callback(on: *mut c_void, f: on_close);
        pub fn nghttp2_session_client_new(
            to: *mut *mut c_void,
            on: *const c_void,
            user: *mut c_void,
        ) -> c_int;
        pub fn nghttp2_session_server_new(
            to: *mut *mut c_void,
            on: *const c_void,
            user: *mut c_void,
        ) -> c_int;
        pub fn nghttp2_session_mem_send(session: *mut c_void, data: *mut *const u8) -> isize;
        pub fn nghttp2_session_mem_recv(session: *mut c_void, data: *const u8, n: usize) -> isize;
        pub fn nghttp2_submit_settings(
            session: *mut c_void,
            flags: u8,
            entries: *const settings_entry,
            n: usize,
        ) -> c_int;
        pub fn nghttp2_submit_request(
            session: *mut c_void,
            priority: *const c_void,
            fields: *const nv,
            n: usize,
            body: *const data_provider,
            user: *mut c_void,
        ) -> i32;
        pub fn nghttp2_submit_response(
            session: *mut c_void,
            stream: i32,
            fields: *const nv,
            n: usize,
            body: *const data_provider,
        ) -> c_int;
    }
}

/// State shared by the callbacks of one session.
#[derive(Default)]
struct Program {
    totals: Totals,
    /// The body of every response.
    body: &'static [u8],
    is_server: bool,
}

pub struct EndPair {
    client: *mut c_void,
    server: *mut c_void,
    // Boxed, since the sessions hold pointers to them.
    near: Box<Program>,
    far: Box<Program>,
    buffer: Vec<u8>,
}

unsafe extern "C" fn on_frame(
    session: *mut c_void,
    frame: *const ffi::frame_hd,
    user: *mut c_void,
) -> c_int {
    // SAFETY: the library passes the pointer that it was given, and a frame that lives as long as the call.
    let (program, frame) = unsafe { (&mut *user.cast::<Program>(), &*frame) };
    let is_request =
        program.is_server && frame.kind == ffi::HEADERS && frame.flags & ffi::FLAG_END_STREAM != 0;
    if is_request {
        program.totals.requests += 1;
        respond(session, frame.stream_id, program.body);
    }
    0
}

unsafe extern "C" fn on_header(
    _: *mut c_void,
    _: *const ffi::frame_hd,
    name: *const u8,
    _: usize,
    _: *const u8,
    _: usize,
    _: u8,
    user: *mut c_void,
) -> c_int {
    // SAFETY: as above; no name is empty.
    let (program, first) = unsafe { (&mut *user.cast::<Program>(), *name) };
    program.totals.fields += usize::from(first != b':');
    0
}

unsafe extern "C" fn on_data(
    _: *mut c_void,
    _: u8,
    _: i32,
    _: *const u8,
    n: usize,
    user: *mut c_void,
) -> c_int {
    // SAFETY: as above.
    unsafe { (*user.cast::<Program>()).totals.body_bytes += n };
    0
}

unsafe extern "C" fn on_close(_: *mut c_void, _: i32, _: u32, user: *mut c_void) -> c_int {
    // SAFETY: as above.
    let program = unsafe { &mut *user.cast::<Program>() };
    program.totals.responses += usize::from(!program.is_server);
    0
}

/// The body is shorter than any buffer of a frame.
unsafe extern "C" fn read(
    _: *mut c_void,
    _: i32,
    to: *mut u8,
    room: usize,
    flags: *mut u32,
    _: *mut *mut c_void,
    user: *mut c_void,
) -> isize {
    // SAFETY: `to` has `room` bytes, of which the body takes fewer.
    unsafe {
        let body = (*user.cast::<Program>()).body;
        assert!(body.len() <= room);
        ptr::copy_nonoverlapping(body.as_ptr(), to, body.len());
        *flags |= ffi::DATA_FLAG_EOF;
        body.len() as isize
    }
}

fn field(name: &str, value: &str) -> ffi::nv {
    ffi::nv {
        name: name.as_ptr(),
        value: value.as_ptr(),
        name_len: name.len(),
        value_len: value.len(),
        flags: ffi::NO_COPY,
    }
}

fn respond(session: *mut c_void, stream: i32, body: &'static [u8]) {
    let length = if body.len() == 13 { "13" } else { "1024" };
    let fields = [
        field(":status", "200"),
        field(RESPONSE_FIELDS[0].0, RESPONSE_FIELDS[0].1),
        field(RESPONSE_FIELDS[1].0, RESPONSE_FIELDS[1].1),
        field(RESPONSE_FIELDS[2].0, RESPONSE_FIELDS[2].1),
        field("content-length", length),
    ];
    let provider = ffi::data_provider {
        source: ptr::null_mut(),
        read,
    };
    // SAFETY: the texts are static; the array and the provider are copied.
    let done = unsafe {
        ffi::nghttp2_submit_response(session, stream, fields.as_ptr(), fields.len(), &provider)
    };
    assert_eq!(done, 0);
}

type Make = unsafe extern "C" fn(*mut *mut c_void, *const c_void, *mut c_void) -> c_int;

fn session(make: Make, program: &mut Program) -> *mut c_void {
    let mut on = ptr::null_mut();
    let mut session = ptr::null_mut();
    let settings = ffi::settings_entry {
        id: ffi::SETTINGS_MAX_CONCURRENT_STREAMS,
        value: 128,
    };
    // SAFETY: everything given outlives the session, which lives as long as the process.
    unsafe {
        ffi::nghttp2_session_callbacks_new(&mut on);
        ffi::nghttp2_session_callbacks_set_on_frame_recv_callback(on, on_frame);
        ffi::nghttp2_session_callbacks_set_on_header_callback(on, on_header);
        ffi::nghttp2_session_callbacks_set_on_data_chunk_recv_callback(on, on_data);
        ffi::nghttp2_session_callbacks_set_on_stream_close_callback(on, on_close);
        assert_eq!(
            make(&mut session, on, ptr::from_mut(program).cast::<c_void>()),
            0
        );
        ffi::nghttp2_submit_settings(session, 0, &settings, 1);
    }
    session
}

impl EndPair {
    pub fn new() -> Self {
        let mut near = Box::new(Program::default());
        let mut far = Box::new(Program {
            is_server: true,
            ..Program::default()
        });
        Self {
            client: session(ffi::nghttp2_session_client_new, &mut near),
            server: session(ffi::nghttp2_session_server_new, &mut far),
            near,
            far,
            buffer: Vec::new(),
        }
    }

    /// Everything that one end has to send, in one piece, as a writer to a socket would gather it.
    fn transfer(&mut self, from: *mut c_void, to: *mut c_void) -> bool {
        self.buffer.clear();
        loop {
            let mut data = ptr::null();
            // SAFETY: the bytes live until the next call.
            let piece = unsafe {
                let n = ffi::nghttp2_session_mem_send(from, &mut data);
                assert!(n >= 0);
                if n == 0 {
                    break;
                }
                slice::from_raw_parts(data, n as usize)
            };
            self.buffer.extend_from_slice(piece);
        }
        // SAFETY: bytes and their number.
        let n =
            unsafe { ffi::nghttp2_session_mem_recv(to, self.buffer.as_ptr(), self.buffer.len()) };
        assert_eq!(n, self.buffer.len() as isize);
        n > 0
    }
}

impl Subject for EndPair {
    fn name(&self) -> &'static str {
        "nghttp2"
    }

    fn exchange(&mut self, shape: Shape, totals: &mut Totals) {
        self.near.totals = Totals::default();
        self.far.totals = Totals::default();
        self.far.body = shape.body;
        let fields = [
            field(":method", "GET"),
            field(":scheme", "http"),
            field(":authority", AUTHORITY),
            field(":path", PATH),
            field(REQUEST_FIELDS[0].0, REQUEST_FIELDS[0].1),
            field(REQUEST_FIELDS[1].0, REQUEST_FIELDS[1].1),
        ];
        for _ in 0..shape.at_once {
            // SAFETY: the texts are static; the array is copied.
            let stream = unsafe {
                ffi::nghttp2_submit_request(
                    self.client,
                    ptr::null(),
                    fields.as_ptr(),
                    fields.len(),
                    ptr::null(),
                    ptr::null_mut(),
                )
            };
            assert!(stream > 0);
        }
        let (client, server) = (self.client, self.server);
        self.transfer(client, server);
        self.transfer(server, client);
        for end in [&self.near, &self.far] {
            totals.requests += end.totals.requests;
            totals.responses += end.totals.responses;
            totals.fields += end.totals.fields;
            totals.body_bytes += end.totals.body_bytes;
        }
    }
}

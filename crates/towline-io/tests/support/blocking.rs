//! Calls of the blocking client, made on the thread of the test.

use std::sync::Arc;
use std::time::Duration;

use towline_io::client::{
    Blocking, BlockingCall, BlockingConfig, CallError, CallOptions, DialConfig, Ended, Patience,
    PoolLimits, Prepared, Timeouts,
};
use towline_proto::{Limits, ProtocolPolicy};

pub fn client() -> Blocking {
    Blocking::new(BlockingConfig::default())
}

pub fn with_pool(pool: PoolLimits) -> Blocking {
    Blocking::new(BlockingConfig {
        pool,
        ..BlockingConfig::default()
    })
}

pub fn patiently<T>(act: impl FnOnce(&mut Patience<'_>) -> T) -> T {
    act(&mut Patience::new(&mut || false, None))
}

pub fn answered(
    client: &Blocking,
    prepared: Prepared,
    options: CallOptions,
) -> Result<(u16, BlockingCall), Ended> {
    patiently(|patience| {
        let mut call = client.begin(prepared, options, patience)?;
        let head = call.await_head(patience)?;
        Ok((head.view().status(), call))
    })
}

pub fn begin(
    client: &Blocking,
    prepared: Prepared,
    options: CallOptions,
) -> Result<BlockingCall, Ended> {
    answered(client, prepared, options).map(|(_, call)| call)
}

pub fn body_of(call: &mut BlockingCall) -> Result<Vec<u8>, Ended> {
    let mut body = Vec::new();
    patiently(|patience| call.read_all(&mut body, patience)).map(|()| body)
}

pub fn exchange(client: &Blocking, prepared: Prepared) -> Result<(u16, Vec<u8>, bool), Ended> {
    let (status, mut call) = answered(client, prepared, CallOptions::default())?;
    let body = body_of(&mut call)?;
    Ok((status, body, call.is_reused()))
}

pub fn failed<T>(result: Result<T, Ended>) -> CallError {
    match result {
        Err(Ended::Failed(error)) => *error,
        Err(Ended::Interrupted) => panic!("interrupted"),
        Ok(_) => panic!("no error"),
    }
}

pub fn read_timeout(timeout: Duration) -> CallOptions {
    CallOptions {
        timeouts: Timeouts {
            read: Some(timeout),
            ..Timeouts::default()
        },
        ..CallOptions::default()
    }
}

/// Over HTTP/2 without asking.
pub fn sharing() -> BlockingConfig {
    BlockingConfig {
        dial: Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2)),
        ..BlockingConfig::default()
    }
}

pub fn sharing_client() -> Blocking {
    Blocking::new(sharing())
}

/// At most one connection, whatever the server allows on it.
pub fn sharing_client_of_one() -> Blocking {
    Blocking::new(BlockingConfig {
        pool: PoolLimits {
            max_connections: 1,
            ..PoolLimits::default()
        },
        ..sharing()
    })
}

pub fn sharing_client_within(limits: Limits) -> Blocking {
    Blocking::new(BlockingConfig {
        limits: Arc::new(limits),
        ..sharing()
    })
}

/// Status and body.
pub fn whole(client: &Blocking, prepared: Prepared) -> (u16, Vec<u8>) {
    let (status, body, _) = exchange(client, prepared).unwrap();
    (status, body)
}

pub fn assert_at_rest(client: &Blocking, idle: usize) {
    let status = client.status();
    let counts = (status.active, status.waiting, status.dialling, status.idle);
    assert_eq!(counts, (0, 0, 0, idle));
}

//! Calls of the blocking client, made on the thread of the test.

use std::sync::Arc;
use std::time::Duration;

use towline_io::client::{
    BlockingCall, BlockingClient, BlockingConfig, BlockingError, CallError, CallOptions,
    DialConfig, OutgoingRequest, PoolLimits, Timeouts, WaitPolicy,
};
use towline_proto::{Limits, ProtocolPolicy};

pub fn client() -> BlockingClient {
    BlockingClient::new(BlockingConfig::default())
}

pub fn with_pool(pool: PoolLimits) -> BlockingClient {
    BlockingClient::new(BlockingConfig {
        pool,
        ..BlockingConfig::default()
    })
}

pub fn uninterrupted<T>(act: impl FnOnce(&mut WaitPolicy<'_>) -> T) -> T {
    act(&mut WaitPolicy::new(&mut || false, None))
}

pub fn answered(
    client: &BlockingClient,
    request: OutgoingRequest,
    options: CallOptions,
) -> Result<(u16, BlockingCall), BlockingError> {
    uninterrupted(|policy| {
        let mut call = client.begin(request, options, policy)?;
        let head = call.await_head(policy)?;
        Ok((head.view().status(), call))
    })
}

pub fn begin(
    client: &BlockingClient,
    request: OutgoingRequest,
    options: CallOptions,
) -> Result<BlockingCall, BlockingError> {
    answered(client, request, options).map(|(_, call)| call)
}

pub fn body_of(call: &mut BlockingCall) -> Result<Vec<u8>, BlockingError> {
    let mut body = Vec::new();
    uninterrupted(|policy| call.read_all(&mut body, policy)).map(|()| body)
}

pub fn exchange(
    client: &BlockingClient,
    request: OutgoingRequest,
) -> Result<(u16, Vec<u8>, bool), BlockingError> {
    let (status, mut call) = answered(client, request, CallOptions::default())?;
    let body = body_of(&mut call)?;
    Ok((status, body, call.is_reused()))
}

pub fn failed<T>(result: Result<T, BlockingError>) -> CallError {
    match result {
        Err(BlockingError::Failed(error)) => *error,
        Err(BlockingError::Interrupted) => panic!("interrupted"),
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

/// HTTP/2 with prior knowledge.
pub fn sharing() -> BlockingConfig {
    BlockingConfig {
        dial: Arc::new(DialConfig::default().with_protocols(ProtocolPolicy::Http2)),
        ..BlockingConfig::default()
    }
}

pub fn sharing_client() -> BlockingClient {
    BlockingClient::new(sharing())
}

/// At most one connection, whatever the server allows on it.
pub fn sharing_client_of_one() -> BlockingClient {
    BlockingClient::new(BlockingConfig {
        pool: PoolLimits {
            max_connections: 1,
            ..PoolLimits::default()
        },
        ..sharing()
    })
}

pub fn sharing_client_within(limits: Limits) -> BlockingClient {
    BlockingClient::new(BlockingConfig {
        limits: Arc::new(limits),
        ..sharing()
    })
}

/// Status and body.
pub fn whole(client: &BlockingClient, request: OutgoingRequest) -> (u16, Vec<u8>) {
    let (status, body, _) = exchange(client, request).unwrap();
    (status, body)
}

pub fn assert_at_rest(client: &BlockingClient, idle: usize) {
    let status = client.status();
    let counts = (status.active, status.waiting, status.dialling, status.idle);
    assert_eq!(counts, (0, 0, 0, idle));
}

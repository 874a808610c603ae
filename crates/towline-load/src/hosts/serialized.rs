//! Serialized forms of a load's values that serde does not know.

use serde::{Deserialize, Serialize};
use towline_io::quic::QuicCounts;
use towline_proto::Protocol;
use towline_proto::ws::Kind;

#[derive(Serialize, Deserialize)]
#[serde(remote = "Protocol")]
pub(crate) enum ProtocolDef {
    Http1,
    Http2,
    Http3,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Kind")]
pub(crate) enum KindDef {
    Text,
    Binary,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "QuicCounts")]
pub(crate) struct QuicCountsDef {
    connections: u64,
    early_sent: u64,
    early_accepted: u64,
    sent_packets: u64,
    lost_packets: u64,
    sent_datagrams: u64,
    received_datagrams: u64,
    congestion_events: u64,
}

/// A body, in base64.
pub(crate) mod bytes {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::base64_bytes;

    #[derive(Serialize, Deserialize)]
    struct Base64(#[serde(with = "base64_bytes")] Vec<u8>);

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(crate) fn serialize<S: Serializer>(
        bytes: &Option<Bytes>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let bytes = bytes.as_ref().map(|bytes| Base64(bytes.to_vec()));
        bytes.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Bytes>, D::Error> {
        let bytes = Option::<Base64>::deserialize(deserializer)?;
        Ok(bytes.map(|bytes| bytes.0.into()))
    }
}

/// The rows of a load.
pub(crate) mod data {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::data::Data;

    #[expect(clippy::ref_option, reason = "serde calls it so")]
    pub(crate) fn serialize<S: Serializer>(
        data: &Option<Arc<Data>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        data.as_deref().serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Arc<Data>>, D::Error> {
        Ok(Option::<Data>::deserialize(deserializer)?.map(Arc::new))
    }
}

/// A histogram in the V2 encoding, deflated, in base64: every bucket with its count.
pub(crate) mod histogram {
    use hdrhistogram::Histogram;
    use hdrhistogram::serialization::V2DeflateSerializer;
    use hdrhistogram::serialization::{Deserializer as Decoder, Serializer as _};
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserializer, Serializer};

    use super::base64_bytes;

    pub(crate) fn serialize<S: Serializer>(
        times: &Histogram<u64>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        V2DeflateSerializer::new()
            .serialize(times, &mut bytes)
            .map_err(|error| S::Error::custom(format!("{error:?}")))?;
        base64_bytes::serialize(&bytes, serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Histogram<u64>, D::Error> {
        let bytes = base64_bytes::deserialize(deserializer)?;
        let decoded = Decoder::new().deserialize(&mut &bytes[..]);
        let mut times: Histogram<u64> =
            decoded.map_err(|error| D::Error::custom(format!("{error:?}")))?;
        // The histogram grows when others are added to it.
        times.auto(true);
        Ok(times)
    }
}

/// Bytes in base64.
pub(crate) mod base64_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map_err(D::Error::custom)
    }
}

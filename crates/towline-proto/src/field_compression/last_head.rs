//! An encoder's memory of the last head. Heads of one connection resemble each other, so the encoder first tries the
//! encoding of the field at the same position.

/// Number of fields whose encodings are remembered. Few heads are longer.
const MAX_REMEMBERED_FIELDS: usize = 16;

/// How a field was encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FieldRef {
    /// A literal that is in no table.
    None,
    /// The static entry at that place.
    Static(u8),
    /// The dynamic entry of that number.
    Dynamic(u32),
}

/// The encodings of the fields of the last head, by position, and the state that encoded heads depend on.
#[derive(Debug)]
pub(crate) struct LastHead {
    fields: [FieldRef; MAX_REMEMBERED_FIELDS],
    /// Position of the next field.
    position: usize,
    /// Number of changes to the state, saturating.
    generation: u32,
}

impl LastHead {
    pub fn new() -> Self {
        Self {
            fields: [FieldRef::None; MAX_REMEMBERED_FIELDS],
            position: 0,
            generation: 0,
        }
    }

    /// The next head begins.
    #[inline]
    pub fn start(&mut self) {
        self.position = 0;
    }

    /// How the field at this position was encoded.
    #[inline]
    pub fn field(&self) -> Option<&FieldRef> {
        self.fields.get(self.position)
    }

    /// The field is encoded as the last one at this position.
    #[inline]
    pub fn repeat(&mut self) {
        self.position += 1;
    }

    /// The field is encoded in another way.
    #[inline]
    pub fn set(&mut self, field: FieldRef) {
        if let Some(last) = self.fields.get_mut(self.position) {
            *last = field;
        }
        self.position += 1;
    }

    /// The state has changed: the same fields may be encoded in another way.
    #[inline]
    pub fn change(&mut self) {
        self.generation = self.generation.saturating_add(1);
    }

    /// Identifies the state. `None`: the counter is saturated.
    #[inline]
    pub fn generation(&self) -> Option<u32> {
        (self.generation < u32::MAX).then_some(self.generation)
    }
}

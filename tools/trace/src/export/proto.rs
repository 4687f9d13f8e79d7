//! Messages of Protocol Buffers, as bytes: the four kinds of fields that a Perfetto trace needs.

/// The bytes of a message.
#[derive(Debug, Default)]
pub(super) struct Message(pub Vec<u8>);

impl Message {
    /// A field of an integer or of a boolean.
    pub fn number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    /// A field of the type `fixed64`.
    pub fn fixed(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A field of text.
    pub fn text(&mut self, field: u32, text: &str) {
        self.tag(field, 2);
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    /// A field that is a message.
    pub fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        self.tag(field, 2);
        let start = self.0.len();
        fill(self);
        // The length stands before the message and is known after it.
        let end = self.0.len();
        self.varint((end - start) as u64);
        let length_bytes = self.0.len() - end;
        self.0[start..].rotate_right(length_bytes);
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

//! Enums whose variants are labels of metrics.

/// Declares an enum with a label for each variant: `ALL` has the variants in order.
macro_rules! labelled {
    ($(#[$doc:meta])* pub enum $name:ident { $($(#[$of:meta])* $variant:ident: $label:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $variant,)*
        }

        impl $name {
            pub const ALL: [Self; [$($label),*].len()] = [$(Self::$variant),*];

            pub fn label(self) -> &'static str {
                [$($label),*][self as usize]
            }
        }
    };
}

pub(super) use labelled;

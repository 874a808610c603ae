//! The machine of Towline.

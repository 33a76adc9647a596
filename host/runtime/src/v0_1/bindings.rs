//! Generated from the frozen directory of this version.

#![allow(
    unsafe_code,
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::panic
)]

wasmtime::component::bindgen!({
    path: "../../wit/provider-0.1",
    // One world of everything: a component has the part of it that its role calls for.
    inline: "
        package capstan:host;
        world everything {
            import capstan:provider/subject@0.1.0;
            import capstan:provider/cluster@0.1.0;
            import capstan:provider/machine@0.1.0;
            import capstan:provider/granted@0.1.0;
            import capstan:provider/known@0.1.0;
            import capstan:provider/joining@0.1.0;
            import capstan:provider/control-plane-view@0.1.0;
            import capstan:provider/logging@0.1.0;
            import capstan:provider/secrets@0.1.0;
            import capstan:provider/http@0.1.0;
            export capstan:provider/kinds@0.1.0;
            export capstan:provider/needs@0.1.0;
            export capstan:provider/resources@0.1.0;
            export capstan:provider/infra-cluster@0.1.0;
            export capstan:provider/infra-machine@0.1.0;
            export capstan:provider/bootstrap@0.1.0;
            export capstan:provider/control-plane@0.1.0;
        }
    ",
    world: "capstan:host/everything",
    imports: {
        "capstan:provider/http": async | trappable,
        default: trappable,
    },
    exports: { default: async },
    with: {
        "capstan:provider/secrets.secret": crate::secrets::Secret,
        "capstan:provider/control-plane-view.member": crate::state::MemberIndex,
    },
});

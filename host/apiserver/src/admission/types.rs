//! What type an expression comes to, as far as it can be seen at once: enough to tell who wrote a text where a decision is
//! wanted. The engine has no type checker.

use kube_cel::cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};

/// The type's name; none when it cannot be told.
pub(super) fn type_of(expression: &IdedExpr) -> Option<&'static str> {
    match &expression.expr {
        Expr::Literal(literal) => Some(match literal {
            LiteralValue::Boolean(_) => "bool",
            LiteralValue::Bytes(_) => "bytes",
            LiteralValue::Double(_) => "double",
            LiteralValue::Int(_) => "int",
            LiteralValue::Null => "null",
            LiteralValue::String(_) => "string",
            LiteralValue::UInt(_) => "uint",
        }),
        Expr::Ident(name) if name.starts_with("has ") => Some("bool"),
        Expr::Ident(name) => {
            let root = name.split('.').next().unwrap_or_default();
            matches!(root, "object" | "oldObject" | "params").then_some("dyn")
        }
        Expr::Select(select) if select.test => Some("bool"),
        Expr::Select(select) => type_of(&select.operand).filter(|of| *of == "dyn"),
        Expr::Call(call) => {
            let of = |index: usize| call.args.get(index).and_then(type_of);
            match call.func_name.as_str() {
                operators::CONDITIONAL => of(1).filter(|then| of(2) == Some(then)),
                operators::INDEX => of(0).filter(|of| *of == "dyn"),
                operators::ADD => of(0).filter(|left| of(1) == Some(left)),
                operators::LOGICAL_AND
                | operators::LOGICAL_OR
                | operators::LOGICAL_NOT
                | operators::EQUALS
                | operators::NOT_EQUALS
                | operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS
                | operators::IN
                | "startsWith"
                | "endsWith"
                | "contains"
                | "matches" => Some("bool"),
                "string" | "lowerAscii" | "upperAscii" | "trim" | "replace" | "substring" | "format" | "join" => {
                    Some("string")
                }
                "size" | "indexOf" | "lastIndexOf" | "int" => Some("int"),
                _ => None,
            }
        }
        Expr::Comprehension(inner) => match &inner.accu_init.expr {
            Expr::Literal(LiteralValue::Boolean(_)) => Some("bool"),
            Expr::List(_) => Some("list"),
            _ => None,
        },
        Expr::List(_) => Some("list"),
        Expr::Map(_) => Some("map"),
        Expr::Struct(_) | Expr::Unspecified => None,
    }
}

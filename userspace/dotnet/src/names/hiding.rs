//! Marks frames of the runtime's plumbing, and frames that a view may merge into one.
//!
//! Nothing is removed here: a view decides.

/// A frame's names, of any profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown<'a> {
    pub name: &'a str,
    pub system_name: &'a str,
}

impl<'a> Shown<'a> {
    /// The method's raw name.
    fn raw(&self) -> &'a str {
        let all = if self.system_name.is_empty() { self.name } else { self.system_name };
        let name = all.split_once('(').map_or(all, |(name, _)| name);
        name.rsplit_once('.').map_or(name, |(_, method)| method)
    }
}

/// Types whose every method stands between a caller and its continuation.
const TYPES: [&str; 26] = [
    "System.Runtime.CompilerServices.AsyncIteratorMethodBuilder",
    "System.Runtime.CompilerServices.AsyncMethodBuilderCore",
    "System.Runtime.CompilerServices.AsyncTaskMethodBuilder",
    "System.Runtime.CompilerServices.AsyncValueTaskMethodBuilder",
    "System.Runtime.CompilerServices.AsyncVoidMethodBuilder",
    "System.Runtime.CompilerServices.ConfiguredTaskAwaitable",
    "System.Runtime.CompilerServices.ConfiguredValueTaskAwaitable",
    "System.Runtime.CompilerServices.PoolingAsyncValueTaskMethodBuilder",
    "System.Runtime.CompilerServices.TaskAwaiter",
    "System.Runtime.CompilerServices.ValueTaskAwaiter",
    "System.Runtime.CompilerServices.YieldAwaitable",
    "System.Runtime.CompilerServices.AsyncHelpers",
    "System.Runtime.ExceptionServices.InternalCalls",
    "System.Runtime.EH",
    "System.Runtime.StackFrameIterator",
    "System.Threading.ExecutionContext",
    "System.Threading.Tasks.AwaitTaskContinuation",
    "System.Threading.Tasks.ContinuationTaskFromTask",
    "System.Threading.Tasks.ContinuationTaskFromResultTask",
    "System.Threading.Tasks.ContinuationResultTaskFromTask",
    "System.Threading.Tasks.ContinuationResultTaskFromResultTask",
    "System.Threading.Tasks.ContinueWithTaskContinuation",
    "System.Threading.Tasks.SynchronizationContextAwaitTaskContinuation",
    "System.Threading.Tasks.TaskSchedulerAwaitTaskContinuation",
    "System.Threading.Tasks.UnwrapPromise",
    "System.Threading.Tasks.Sources.ManualResetValueTaskSourceCore",
];

/// Single methods of types that do more than that.
const METHODS: [&str; 18] = [
    "System.Threading.Tasks.Task.ExecuteEntry",
    "System.Threading.Tasks.Task.ExecuteEntryUnsafe",
    "System.Threading.Tasks.Task.ExecuteFromThreadPool",
    "System.Threading.Tasks.Task.ExecuteWithThreadLocal",
    "System.Threading.Tasks.Task.FinishContinuations",
    "System.Threading.Tasks.Task.FinishSlow",
    "System.Threading.Tasks.Task.FinishStageThree",
    "System.Threading.Tasks.Task.FinishStageTwo",
    "System.Threading.Tasks.Task.InnerInvoke",
    "System.Threading.Tasks.Task.RunContinuations",
    "System.Threading.Tasks.Task.RunOrQueueCompletionAction",
    "System.Threading.Tasks.Task.ScheduleAndStart",
    "System.Threading.Tasks.Task.SetContinuationForAwait",
    "System.Threading.Tasks.Task.TrySetException",
    "System.Threading.Tasks.Task.TrySetResult",
    "System.Threading.Tasks.Task.UnsafeSetContinuationForAwait",
    "System.Runtime.ExceptionServices.ExceptionDispatchInfo.Throw",
    "System.Runtime.CompilerServices.RuntimeHelpers.DispatchTailCalls",
];

/// Whether a frame of this cleaned name stands between a caller and its continuation, or between a
/// `throw` and its `catch`, without being user code.
#[must_use]
pub fn plumbing(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("System.") else { return false };
    // Most names are not hidden, and need no copy for the check.
    if !rest.starts_with("Runtime.") && !rest.starts_with("Threading.") {
        return false;
    }
    let plain = without_arguments(name);
    METHODS.contains(&plain.as_str())
        || TYPES
            .iter()
            .any(|known| plain.strip_prefix(known).is_some_and(|rest| rest.starts_with('.')))
}

/// The name without what is in angle brackets.
fn without_arguments(name: &str) -> String {
    let mut depth = 0usize;
    let mut plain = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(character),
            _ => {}
        }
    }
    plain
}

/// Whether two adjacent frames are shown as one: an async method and its own first part, an
/// iterator and the state machine of its body, or an async `Main` and its wrapper, which have the
/// same name. A method that calls itself stays as many frames as it is. Plumbing between the two
/// must be hidden before.
#[must_use]
pub fn folds(callee: Shown<'_>, caller: Shown<'_>) -> bool {
    if wraps(caller.raw(), callee.raw()) {
        return callee.name == caller.name;
    }
    let (body, method) = match (is_body(callee.system_name), is_body(caller.system_name)) {
        (true, false) => (callee.name, caller.name),
        (false, true) => (caller.name, callee.name),
        _ => return false,
    };
    // With signatures in the names: the body has no parameters, the method may have some.
    let body = body.strip_suffix("()").unwrap_or(body);
    method.strip_prefix(body).is_some_and(|rest| rest.is_empty() || rest.starts_with('('))
}

/// Whether the compiler made a method to call an entry point that waits: "<Main>" calls "Main", or
/// the "<Main>$" of top-level statements.
fn wraps(wrapper: &str, method: &str) -> bool {
    let Some(of_method) = wrapper.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) else {
        return false;
    };
    method == of_method || method.strip_suffix('$') == Some(wrapper)
}

/// Whether a raw name is of a method that the compiler generated from a source method's body.
fn is_body(system_name: &str) -> bool {
    let name = system_name.split_once('(').map_or(system_name, |(name, _)| name);
    // An iterator's method only makes what holds its body.
    let of_type = name.strip_suffix(".MoveNext").or_else(|| name.strip_suffix("..ctor"));
    of_type.is_some_and(|of_type| of_type.contains(">d") || of_type.contains("VB$StateMachine_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plumbing_is_known_with_and_without_arguments() {
        for name in [
            "System.Runtime.CompilerServices.AsyncMethodBuilderCore.Start<Shop.Payment.Pay>",
            "System.Runtime.CompilerServices.AsyncTaskMethodBuilder<TResult>.Start<TStateMachine>",
            "System.Runtime.CompilerServices.AsyncTaskMethodBuilder<TResult>.AsyncStateMachineBox<Shop.Payment.Pay>.MoveNext",
            "System.Threading.ExecutionContext.RunInternal",
            "System.Threading.Tasks.Task<TResult>.TrySetResult",
            "System.Runtime.EH.RhThrowEx",
        ] {
            assert!(plumbing(name), "{name}");
        }
        for name in [
            "System.Threading.Tasks.Task.Wait",
            "System.Runtime.EHelp.Go",
            "Shop.Payment.Pay",
            "System.Threading.ExecutionContext",
            "",
        ] {
            assert!(!plumbing(name), "{name}");
        }
    }

    #[test]
    fn an_async_main_and_its_wrapper_are_one() {
        let shown = |system_name| Shown { name: "Program.Main", system_name };
        let wrapper = shown("System.Int32 Program.<Main>(System.String[])");
        let main =
            shown("System.Threading.Tasks.Task`1[System.Int32] Program.Main(System.String[])");
        let statements = shown("System.Threading.Tasks.Task Program.<Main>$(System.String[])");
        let body = shown("System.Void Program+<Main>d__0.MoveNext()");
        assert!(folds(main, wrapper) && folds(statements, wrapper) && folds(body, wrapper));
        assert!(folds(main, shown("Program.<Main>")) && folds(shown(""), wrapper));
        assert!(!folds(wrapper, main), "the wrapper calls, it is not called");
        assert!(!folds(main, main) && !folds(wrapper, wrapper) && !folds(statements, statements));
        let other = Shown { name: "Other.Main", system_name: "System.Void Other.Main()" };
        assert!(!folds(other, wrapper), "of another type");
    }

    #[test]
    fn an_async_method_and_its_body_are_one() {
        let start = Shown { name: "Shop.Payment.Pay", system_name: "Shop.Payment.Pay()" };
        let body = Shown {
            name: "Shop.Payment.Pay",
            system_name: "System.Void Shop.Payment+<Pay>d__7.MoveNext()",
        };
        assert!(folds(body, start) && folds(start, body));
        for system_name in [
            "System.Void Shop.Payment+<Pay>d__7..ctor(System.Int32)",
            "Shop.Payment+VB$StateMachine_7_Pay..ctor",
        ] {
            assert!(folds(Shown { system_name, ..body }, start), "{system_name}");
        }
        assert!(!folds(start, start), "a method that calls itself");
        assert!(!folds(body, body));
        assert!(!folds(body, Shown { name: "Shop.Payment.Other", ..start }));
        let start = Shown { name: "Shop.Payment.Pay(System.Int32)", ..start };
        assert!(folds(Shown { name: "Shop.Payment.Pay()", ..body }, start), "with signatures");
    }
}

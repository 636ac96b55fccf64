// The kinds of methods that the F# compiler names: closures, members, async blocks, a tail call.
// usage: Functional seconds-each
//
// First a line "expect NAME" for each, then "ready", then they run in turn. A closure's name has the
// line it begins on, so the lines here count.
module Functional

open System
open System.Diagnostics
open System.Runtime.CompilerServices

let mutable seconds = 0.1
let mutable sink = 1UL

[<MethodImpl(MethodImplOptions.NoInlining)>]
let spin () =
    let clock = Stopwatch.StartNew()
    let mutable x = sink
    while clock.Elapsed.TotalSeconds < seconds do
        for _ in 1 .. 20000 do
            x <- x * 6364136223846793005UL + 1442695040888963407UL
    sink <- x
    1

type Till(start: int) =
    member _.Total
        with [<MethodImpl(MethodImplOptions.NoInlining)>] get () = spin () + start

    [<MethodImpl(MethodImplOptions.NoInlining)>]
    member _.Pay(amount: int) = spin () + amount

module Inner =
    [<MethodImpl(MethodImplOptions.NoInlining)>]
    let visit (f: int -> int) = f 3 + 1

[<MethodImpl(MethodImplOptions.NoInlining)>]
let run (captured: int) =
    let total = fun x -> spin () + x + captured
    Inner.visit total

[<MethodImpl(MethodImplOptions.NoInlining)>]
let last (x: int) (y: int) = spin () + x + y

// "tail." in its code: its frame is gone when `last` runs.
[<MethodImpl(MethodImplOptions.NoInlining)>]
let passOn (x: int) = last x 7

let later (x: int) =
    async {
        do! Async.Sleep 1
        return spin () + x
    }

[<EntryPoint>]
let main arguments =
    if arguments.Length > 0 then
        seconds <- Double.Parse(arguments.[0], Globalization.CultureInfo.InvariantCulture)
    let till = Till(3)
    let forms: (string * (unit -> int)) list =
        [ "Functional.run", (fun () -> run arguments.Length)
          "Functional.run@38", (fun () -> run 3)
          "Functional.Inner.visit", (fun () -> run 4)
          "Functional.Till.Total.get", (fun () -> till.Total)
          "Functional.Till.Pay", (fun () -> till.Pay 3)
          "Functional.last", (fun () -> passOn 3)
          "Functional.later@51-1", (fun () -> Async.RunSynchronously(later 3)) ]
    for (name, _) in forms do
        Console.WriteLine("expect " + name)
    Console.WriteLine("ready")
    Console.Out.Flush()
    for (_, form) in forms do
        sink <- sink + uint64 (form ())
    0

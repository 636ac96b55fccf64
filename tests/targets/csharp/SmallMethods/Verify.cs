// The runtime's own view of the stack, from inside the innermost methods. Only with VERIFY defined:
// otherwise the calls are not compiled and those methods call nothing.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Runtime.CompilerServices;
using System.Text;

namespace Small
{
    internal static class Verify
    {
        // A stack of 800 frames takes a millisecond: not every call is looked at.
        private const int Every = 101;

        [ThreadStatic]
        private static int calls;

        private static readonly HashSet<string> seen = new HashSet<string>();

        [Conditional("VERIFY")]
        [MethodImpl(MethodImplOptions.NoInlining)]
        public static void Here()
        {
            if (calls++ % Every != 0) return;
            var text = new StringBuilder("chain");
            foreach (StackFrame frame in new StackTrace(1).GetFrames())
            {
                text.Append('\t').Append(FrameNames.Of(frame));
            }
            lock (seen) seen.Add(text.ToString());
        }

        [Conditional("VERIFY")]
        public static void Print()
        {
            foreach (string chain in seen) Target.Say(chain);
        }
    }
}

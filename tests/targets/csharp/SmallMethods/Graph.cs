// The call graph as a file. A line is one of
//   program PREFIX       names of the program's own methods begin so
//   root A               A may be a thread's outermost method of the program
//   edge A B             A calls B
//   through A B          A calls something of the framework or the runtime, which calls B
//   gone A B             A calls B and may be gone by then: a tail call, or A was inlined
//   above A B            B may lie above A, not called by it: a handler above the code that threw
//   depth A PREFIX N     below A there are N methods whose names begin so
using System;
using System.Collections.Generic;

namespace Small
{
    internal static class Graph
    {
        private static readonly List<string> lines = new List<string>
        {
            "program Small.",
            "program SmallMethods.",
        };

        // The pairs that make a chain; "above" is no call.
        private static readonly HashSet<string> calls = new HashSet<string>();
        private static readonly List<string[]> pairs = new List<string[]>();

        // "One > Two >> Three ~> Four": a call, a call through the framework, one whose caller may go.
        public static void Chain(string prefix, string chain)
        {
            var words = chain.Split(' ');
            for (int i = 0; i + 2 < words.Length; i += 2)
            {
                string how = words[i + 1] == ">" ? "edge" : words[i + 1] == ">>" ? "through" : "gone";
                string caller = prefix + words[i];
                string callee = prefix + words[i + 2];
                if (calls.Add(caller + " " + callee))
                {
                    pairs.Add(new[] { caller, callee, how });
                    lines.Add(how + " " + caller + " " + callee);
                }
            }
        }

        public static void Above(string lower, string upper)
        {
            lines.Add("above " + lower + " " + upper);
        }

        public static void Root(string method)
        {
            lines.Add("root " + method);
        }

        public static void Depth(string method, string prefix, int depth)
        {
            lines.Add("depth " + method + " " + prefix + " " + depth.ToString());
        }

        public static void Write(string file)
        {
            foreach (var first in pairs)
            {
                foreach (var second in pairs)
                {
                    bool skips = first[1] == second[0] && calls.Contains(first[0] + " " + second[1]);
                    if (skips && first[2] != "gone" && second[2] != "gone")
                    {
                        throw new InvalidOperationException(
                            "nobody would miss " + first[1] + " between " + first[0] + " and " + second[1]);
                    }
                }
            }
            Target.Save(file, lines);
        }
    }
}

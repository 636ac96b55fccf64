// Counts primes, sorts words and waits a little: three shapes to find in a flame graph.
// With a number as its argument it ends after so many rounds.
using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;

namespace Primes
{
    public static class Program
    {
        public static void Main(string[] arguments)
        {
            long rounds = arguments.Length > 0 ? long.Parse(arguments[0]) : long.MaxValue;
            for (long round = 0; round < rounds; round++)
            {
                int primes = CountPrimes(200_000);
                string first = SortWords(20_000).First();
                if (round % 100 == 0)
                {
                    Console.WriteLine($"round {round}: {primes} primes, first word {first}");
                }
                Thread.Sleep(20);
            }
        }

        private static int CountPrimes(int limit)
        {
            bool[] composite = new bool[limit + 1];
            int count = 0;
            for (int number = 2; number <= limit; number++)
            {
                if (composite[number])
                {
                    continue;
                }
                count++;
                for (long multiple = (long)number * number; multiple <= limit; multiple += number)
                {
                    composite[multiple] = true;
                }
            }
            return count;
        }

        private static IEnumerable<string> SortWords(int count)
        {
            Random random = new Random(7);
            return Enumerable.Range(0, count)
                .Select(_ => random.Next().ToString("x8"))
                .OrderBy(word => word, StringComparer.Ordinal);
        }
    }
}
